// Plotly is packed: whole it would be most of the page. A figure is drawn when it comes into view.
(async () => {
  const packed = document.getElementById("plotly").textContent;
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.appendChild(script);
  const draw = (box) => {
    const figure = JSON.parse(box.querySelector("script").textContent);
    const area = document.createElement("div");
    box.replaceChildren(area);
    const columns = Math.max(1, Math.floor((box.clientWidth - 130) / 175));
    figure.layout.height += 10 + 20 * Math.ceil(figure.data.length / columns);  // of the legend
    Plotly.newPlot(area, figure.data, figure.layout,
      {responsive: true, displaylogo: false, modeBarButtons: [["zoom2d", "pan2d", "resetScale2d"]]});
  };
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      seen.unobserve(entry.target);
      draw(entry.target);
    }
  }, {rootMargin: "800px"});
  document.querySelectorAll(".schedule").forEach((box) => seen.observe(box));
})();
