/* Formulas, the evidence index, the language switch and printing. No module loads anything from outside. */
(function () {
  "use strict";

  function renderFormulas() {
    if (!window.katex) return;
    document.querySelectorAll(".arithmatex").forEach(function (element) {
      var source = element.textContent.trim();
      var match = /^\\\(([\s\S]*)\\\)$|^\\\[([\s\S]*)\\\]$/.exec(source);
      if (!match) return;
      var display = match[2] !== undefined;
      window.katex.render(display ? match[2] : match[1], element, { displayMode: display, throwOnError: false });
    });
    // Notebooks write $...$; elsewhere a dollar is a shell variable.
    document.querySelectorAll(".jupyter-wrapper").forEach(function (element) {
      window.renderMathInElement(element, {
        delimiters: [
          { left: "$$", right: "$$", display: true },
          { left: "$", right: "$", display: false },
          { left: "\\(", right: "\\)", display: false },
          { left: "\\[", right: "\\]", display: true },
        ],
        throwOnError: false,
      });
    });
  }

  function filterEvidence() {
    document.querySelectorAll(".nl-index").forEach(function (index) {
      var rows = Array.from(index.querySelectorAll("tbody tr"));
      var selects = Array.from(index.querySelectorAll("select"));
      var count = index.querySelector(".nl-index__count");
      function apply() {
        var shown = 0;
        rows.forEach(function (row) {
          row.hidden = selects.some(function (select) {
            return select.value !== "" && row.dataset[select.name] !== select.value;
          });
          shown += row.hidden ? 0 : 1;
        });
        count.textContent = index.dataset.count.replace("{shown}", shown).replace("{all}", rows.length);
      }
      selects.forEach(function (select) { select.addEventListener("change", apply); });
      apply();
    });
  }

  /* Both languages use the same ids, so the switch keeps the reader's place. */
  function keepPlace() {
    var link = document.querySelector(".nl-lang");
    if (!link) return;
    link.addEventListener("click", function () { link.hash = window.location.hash; });
  }

  /* What overflows must be reachable with the keyboard. */
  function focusScrollers() {
    var observer = new ResizeObserver(function (entries) {
      entries.forEach(function (entry) {
        var element = entry.target;
        if (element.scrollWidth > element.clientWidth) element.tabIndex = 0;
        else element.removeAttribute("tabindex");
      });
    });
    document
      .querySelectorAll(".nl-scroll, .md-typeset__scrollwrap, div.arithmatex, .md-typeset pre > code, .highlight-ipynb, .jp-OutputArea-output")
      .forEach(function (element) { observer.observe(element); });
  }

  /* Paper cannot open a collapsed answer. */
  function openForPrint() {
    var opened = [];
    window.addEventListener("beforeprint", function () {
      opened = Array.from(document.querySelectorAll("details:not([open])"));
      opened.forEach(function (element) { element.open = true; });
    });
    window.addEventListener("afterprint", function () {
      opened.forEach(function (element) { element.open = false; });
    });
  }

  function start() {
    renderFormulas();
    filterEvidence();
    keepPlace();
    focusScrollers();
    openForPrint();
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
