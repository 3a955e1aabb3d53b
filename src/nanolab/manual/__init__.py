"""The manual: what MkDocs needs beside plain Markdown, and the checks that keep the pages honest.

| module | owns |
| --- | --- |
| `commands` | the sections of `docs/commands/*.sh`: their headers, their order |
| `runner` | executing those sections in a scratch copy of the tree |
| `excerpts` | code shown in a page, located by symbol or section, with generated line numbers |
| `blocks` | result blocks on disk: lookup, staleness, one value, the missing ones |
| `cards` | how a block, and the index of all blocks, looks in a page |
| `programs` | the command reference, read from the click programs |
| `fences` | the fenced syntaxes that page authors use (docs/AUTHORING.md) |
| `pages` | a page as headings, sections, commands, numbers |
| `parity` | the two languages compared, and the per-section lock |
| `site` | the MkDocs events |

Everything here reads the repository and writes only what its caller names; nothing imports the engine.
"""
