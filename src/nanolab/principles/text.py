"""What a tokenizer does to one fixed Chinese-English text. Loads tokenizer files only, never weights."""

from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from nanolab.errors import LabError
from nanolab.models import chat_text
from nanolab.models.directory import read_json

TEXT = "大模型推理 = prefill + decode，KV cache 让每一步只算一个新 token。"


@dataclass(frozen=True)
class Tokenization:
    """One text through one tokenizer and back."""

    text: str
    ids: list[int]
    token_pieces: list[str]  # the vocabulary's own spelling: byte-level, so Chinese looks unreadable
    pieces_decoded_alone: list[str]  # each id decoded by itself: a piece of a character shows as U+FFFD
    decoded: str  # all ids decoded together: must be the text again
    chat_template_text: str
    vocabulary_size: int
    tokenizer_sha256: str

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def load_tokenizer(model_dir: Path) -> Any:
    """The tokenizer of a model directory, or an error that names the command that fetches it."""
    if not (model_dir / "tokenizer.json").is_file():
        raise LabError(
            f"no tokenizer.json in {model_dir}; fetch the tokenizer files (no weights) with: "
            f"python scripts/e2e/download_model.py --model {model_dir}"
        )
    read_json(model_dir / "tokenizer.json")  # a half-written file is named here, not deep inside the library
    from transformers import AutoTokenizer  # slow to import, and only this function needs it

    return AutoTokenizer.from_pretrained(model_dir, local_files_only=True)


def tokenize(tokenizer: Any, text: str = TEXT) -> Tokenization:
    """text -> ids -> text. No special tokens are added, so the round trip can be exact."""
    ids = [int(i) for i in tokenizer.encode(text, add_special_tokens=False)]
    return Tokenization(
        text=text,
        ids=ids,
        token_pieces=list(tokenizer.convert_ids_to_tokens(ids)),
        pieces_decoded_alone=[tokenizer.decode([i]) for i in ids],
        decoded=tokenizer.decode(ids),
        chat_template_text=chat_text(tokenizer, [{"role": "user", "content": text}]),
        vocabulary_size=len(tokenizer),
        tokenizer_sha256=sha256((Path(tokenizer.name_or_path) / "tokenizer.json").read_bytes()).hexdigest(),
    )
