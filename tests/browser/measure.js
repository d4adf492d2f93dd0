// SPDX-License-Identifier: Apache-2.0
// Added to a copy of a report by report_test.py: measures the page and leaves the figures in a last element.
(() => {
  const errors = [];
  window.addEventListener("error", (event) => errors.push(String(event.message)));

  const luminance = (colour) => {
    const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const inside = (inner, outer) =>
    inner.left >= outer.left - 1 && inner.right <= outer.right + 1 &&
    inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
  // Two texts side by side need a gap.
  const overlap = (a, b) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > -2 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
  const rect = (element) => {
    const r = element.getBoundingClientRect();
    return { left: r.left, right: r.right, top: r.top, bottom: r.bottom };
  };
  const scroller = (element) => {
    for (let at = element.parentElement; at; at = at.parentElement) {
      if (getComputedStyle(at).overflowX === "auto") return at;
    }
    return null;
  };

  const clipped = [], overlapping = [], tiny = [];
  for (const text of document.querySelectorAll("svg text")) {
    const svg = text.ownerSVGElement;
    let outer = svg;
    while (outer.ownerSVGElement) outer = outer.ownerSVGElement;
    if (!inside(rect(text), rect(outer))) clipped.push(text.textContent);
    if (parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a < 9) tiny.push(text.textContent);
    // What lies beyond the page's edge must be within reach of a scroll of its own.
    if (rect(outer).right > innerWidth + 1 && !scroller(outer)) clipped.push(text.textContent);
  }
  for (const element of document.querySelectorAll("h1,p,figcaption,td,th,li")) {
    if (element.scrollWidth > element.clientWidth + 1 || (element.getBoundingClientRect().right > innerWidth + 1 && !scroller(element))) {
      clipped.push(element.textContent.slice(0, 60));
    }
  }
  for (const svg of document.querySelectorAll("svg")) {
    const texts = [...svg.querySelectorAll("text")].map((text) => [text.textContent, rect(text)]);
    for (let i = 0; i < texts.length; ++i) {
      for (let j = i + 1; j < texts.length; ++j) {
        if (overlap(texts[i][1], texts[j][1])) overlapping.push(`${texts[i][0]} / ${texts[j][0]}`);
      }
    }
  }
  const figures = {};
  for (const figure of document.querySelectorAll("figure")) {
    const drawn = figure.querySelectorAll("rect,path,polyline,td").length;
    const box = figure.getBoundingClientRect();
    figures[figure.id] = { width: box.width, height: box.height, drawn };
  }
  const body = getComputedStyle(document.body);
  const caption = getComputedStyle(document.querySelector("figcaption"));
  const measured = {
    errors, clipped, overlapping, tiny, figures,
    width: innerWidth,
    pageWidth: document.documentElement.scrollWidth,
    background: body.backgroundColor,
    contrast: contrast(body.color, body.backgroundColor),
    captionContrast: contrast(caption.color, body.backgroundColor),
    fetched: performance.getEntriesByType("resource").map((entry) => entry.name),
    scope: document.getElementById("scope").textContent,
  };
  const out = document.createElement("pre");
  out.id = "measured";
  out.textContent = JSON.stringify(measured);
  document.body.append(out);
})();
