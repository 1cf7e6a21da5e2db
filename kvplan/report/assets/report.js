/* Opens the packed data, draws the figures in the page's own colours, and redraws them for dark, print and width. */
(async () => {
  "use strict";
  const $ = (id) => document.getElementById(id);

  async function unpack(id) {
    const bytes = Uint8Array.from(atob($(id).textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  const page = JSON.parse(await unpack("data"));

  /* Buttons work even if no figure can be drawn. */
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const text = $(button.dataset.copy).textContent;
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        const range = document.createRange();
        range.selectNodeContents($(button.dataset.copy));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1600);
    });
  }
  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([page.summary], { type: "application/json" }));
      link.download = "summary.json";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }

  const script = document.createElement("script");
  script.textContent = await unpack("plotly");
  document.head.append(script);

  /* "$used" is the CSS variable --used; "$run0@0.16" the same at that opacity. */
  function palette() {
    const style = getComputedStyle(document.documentElement);
    const find = (name) => style.getPropertyValue("--" + name).trim();
    const colour = (text) => {
      const [name, alpha] = text.slice(1).split("@");
      const hex = find(name);
      if (!alpha) return hex;
      const part = (at) => parseInt(hex.length === 4 ? hex[at] + hex[at] : hex.slice(2 * at - 1, 2 * at + 1), 16);
      return `rgba(${part(1)},${part(2)},${part(3)},${alpha})`;
    };
    const paint = (value, key) => {
      if (typeof value === "string") {
        return /color$/i.test(key) && value.startsWith("$") ? colour(value) : value;
      }
      if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map((item) => paint(item, key));
      if (value && typeof value === "object") {
        return Object.fromEntries(Object.entries(value).map(([k, item]) => [k, paint(item, k)]));
      }
      return value;
    };
    return { find, paint };
  }

  const HUES = 10;
  const CACHED = -2;

  /* Run lengths back to a grid: z[bin][moment] is a hue, one more for cached, null for free. */
  function mapTrace(panel, place, find) {
    const moments = panel.edges.length - 1;
    const z = Array.from({ length: panel.bins }, () => new Array(moments).fill(null));
    const text = Array.from({ length: panel.bins }, () => new Array(moments).fill("free"));
    let at = 0;
    for (let i = 0; i < panel.owners.length; i += 2) {
      const owner = panel.owners[i];
      const end = at + panel.owners[i + 1];
      const hue = owner >= 0 ? panel.hues[owner] : owner === CACHED ? HUES : null;
      const words = owner >= 0 ? panel.names[owner] ?? "request " + owner : owner === CACHED ? "cached prefix" : "free";
      for (; at < end; at++) {
        const bin = at % panel.bins;
        const moment = (at - bin) / panel.bins;
        z[bin][moment] = hue;
        text[bin][moment] = words;
      }
    }
    const scale = [];
    for (let hue = 0; hue <= HUES; hue++) {
      const colour = hue === HUES ? find("cachedblock") : find("hue" + hue);
      scale.push([hue / (HUES + 1), colour], [(hue + 1) / (HUES + 1), colour]);
    }
    const suffix = place ? place + 1 : "";
    return {
      type: "heatmap", z, text, x: panel.edges, y0: 0.5 / panel.bins, dy: 1 / panel.bins,
      zmin: -0.5, zmax: HUES + 0.5, colorscale: scale, showscale: false, hoverongaps: true,
      xaxis: "x" + suffix, yaxis: "y" + suffix, name: panel.run,
      hovertemplate: "%{text}<br>from %{x:.2f} s, at %{y:.1%} of the pool<extra></extra>",
    };
  }

  function prepare(figure, width) {
    const { find, paint } = palette();
    const narrow = width < 560;
    const data = figure.maps ? figure.maps.map((panel, place) => mapTrace(panel, place, find)) : paint(figure.data, "");
    const layout = paint(structuredClone(figure.layout), "");
    const font = { family: find("sans"), size: narrow ? 11 : 12, color: find("muted") };
    for (const key of Object.keys(layout)) {
      if (!/^[xy]axis/.test(key)) continue;
      const axis = layout[key];
      for (const inner of Object.keys(axis)) if (axis[inner] === null) delete axis[inner];
      Object.assign(axis, {
        gridcolor: find("grid"), zeroline: false, linecolor: find("rule"), automargin: true,
        fixedrange: figure.maps ? false : key[0] === "y",
      });
      if (key[0] === "x") Object.assign(axis, { showline: true, ticks: "outside", ticklen: 4, tickcolor: find("rule") });
      if (axis.title) Object.assign(axis.title, { font: { size: 12 }, standoff: 6 });
      if (narrow && key[0] === "y") delete axis.title;
    }
    const entries = data.filter((trace) => trace.showlegend).length;
    const legendHeight = entries ? (narrow && entries > 4 ? 96 : 58) : 30;
    Object.assign(layout, {
      font, width, autosize: false, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: figure.maps ? find("surface") : "rgba(0,0,0,0)",
      margin: { l: 8, r: 12, t: legendHeight, b: 34 },
      legend: { orientation: "h", x: 0, xanchor: "left", xref: "container", y: 1, yanchor: "top", yref: "container", font: { size: 12.5, color: find("ink") },
                traceorder: "normal", itemclick: "toggle", itemdoubleclick: "toggleothers" },
      hoverlabel: { bgcolor: find("surface"), bordercolor: find("rule"), font: { family: find("sans"), size: 12.5, color: find("ink") }, namelength: -1, align: "left" },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    });
    return { data, layout };
  }

  const config = {
    displaylogo: false, responsive: false, scrollZoom: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  };

  /* Paper is white and 182 mm wide inside its margins. */
  const PRINT_WIDTH = 680;
  const PRINT_HEIGHT = 0.8;

  async function draw(forced) {
    for (const place of document.querySelectorAll(".plot")) {
      const width = forced || place.clientWidth;
      const { data, layout } = prepare(page.figures[place.dataset.figure], width);
      if (forced) layout.height = Math.round(layout.height * PRINT_HEIGHT);
      place.style.minHeight = layout.height + "px";
      await Plotly.react(place, data, layout, config);
      place.dataset.drawn = "yes";
    }
    document.documentElement.dataset.ready = "yes";
  }

  await draw();

  let width = innerWidth;
  let timer = 0;
  addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (innerWidth !== width) {
        width = innerWidth;
        draw();
      }
    }, 150);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());

  addEventListener("beforeprint", () => {
    document.documentElement.dataset.print = "yes";
    draw(PRINT_WIDTH);
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    draw();
  });
})();
