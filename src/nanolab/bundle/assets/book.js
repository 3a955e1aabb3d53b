/* The shell of the single file: language, dark, contents, copy, tabs. Nothing is fetched; a setting that cannot be kept is not. */
(function () {
  "use strict";
  var root = document.documentElement;

  function remember(key, value) { try { localStorage.setItem("nanolab-book." + key, value); } catch (error) { /* private mode */ } }
  function recall(key) { try { return localStorage.getItem("nanolab-book." + key); } catch (error) { return null; } }
  function all(selector, scope) { return Array.from((scope || document).querySelectorAll(selector)); }

  // ---- language: the same anchor but for its first two letters ----
  function language() { return root.dataset.language; }
  function speak(name) { root.dataset.language = root.lang = name; remember("language", name); }
  function target() {
    var id = decodeURIComponent(location.hash.slice(1));
    return id ? document.getElementById(id) : null;
  }
  function follow() {
    var element = target();
    if (!element) return;
    var part = element.closest(".book-language");
    if (part && part.dataset.language !== language()) speak(part.dataset.language);
    for (var box = element.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    element.scrollIntoView();
  }
  function visible() {
    var headings = all('.book-language[data-language="' + language() + '"] :is(.book-page, h2[id], h3[id])');
    var above = headings.filter(function (element) { return element.getBoundingClientRect().top < 90; });
    return above.length ? above[above.length - 1].id : "";
  }
  function switchLanguage() {
    var other = language() === "zh" ? "en" : "zh";
    var here = visible();
    var twin = here ? document.getElementById(other + here.slice(2)) : null;
    speak(other);
    if (!twin) { window.scrollTo(0, 0); return; }
    history.replaceState(null, "", "#" + twin.id);
    twin.scrollIntoView();
  }

  // ---- light and dark ----
  function shade(name) { document.body.dataset.mdColorScheme = name; }
  function switchShade() {
    var name = document.body.dataset.mdColorScheme === "slate" ? "default" : "slate";
    shade(name);
    remember("scheme", name);
  }

  // ---- copy: only the code, without line numbers ----
  function copyText(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    var area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    return Promise.resolve();
  }
  function addCopyButtons() {
    all(".highlight").forEach(function (box) {
      var code = box.querySelector("pre > code");
      if (!code || box.querySelector(".highlight")) return;
      var button = document.createElement("button");
      var zh = box.closest(".book-language").dataset.language === "zh";
      button.type = "button";
      button.className = "book-copy";
      button.textContent = zh ? "复制" : "Copy";
      button.addEventListener("click", function () {
        copyText(code.innerText.replace(/\s+$/, "") + "\n").then(function () {
          button.textContent = zh ? "已复制" : "Copied";
          setTimeout(function () { button.textContent = zh ? "复制" : "Copy"; }, 1500);
        });
      });
      box.append(button);
    });
  }

  // ---- tabs: one choice for the whole manual ----
  function label(input) {
    var found = document.querySelector('label[for="' + CSS.escape(input.id) + '"]');
    return found ? found.textContent.trim() : "";
  }
  function choose(name) {
    all(".tabbed-set > input").forEach(function (input) { if (label(input) === name) input.checked = true; });
  }
  function linkTabs() {
    all(".tabbed-set > input").forEach(function (input) {
      input.addEventListener("change", function () { choose(label(input)); remember("tab", label(input)); });
    });
    var kept = recall("tab");
    if (kept) choose(kept);
  }

  // ---- contents ----
  function showPlace() {
    var links = new Map(all(".book-contents a").map(function (a) { return [a.hash.slice(1), a]; }));
    var observer = new IntersectionObserver(function (entries) {
      entries.forEach(function (entry) {
        var link = links.get(entry.target.id);
        if (!link) return;
        if (entry.isIntersecting) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      });
    }, { rootMargin: "-20% 0px -70% 0px" });
    all(".book-page").forEach(function (page) { observer.observe(page); });
  }

  function start() {
    var menu = document.querySelector(".book-menu");
    var dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
    speak(recall("language") || "zh");
    shade(recall("scheme") || (dark ? "slate" : "default"));
    document.querySelector(".book-switch").addEventListener("click", switchLanguage);
    document.querySelector(".book-scheme").addEventListener("click", switchShade);
    menu.addEventListener("click", function () { menu.setAttribute("aria-expanded", root.classList.toggle("book-open")); });
    all(".book-contents a").forEach(function (a) {
      a.addEventListener("click", function () { root.classList.remove("book-open"); menu.setAttribute("aria-expanded", "false"); });
    });
    addCopyButtons();
    linkTabs();
    showPlace();
    window.addEventListener("hashchange", follow);
    follow();
  }

  start();
})();
