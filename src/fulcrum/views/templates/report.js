(() => {
  const { data, drawCharts, fillTable, followTheme, buildTable } = fulcrum;
  for (const figure of document.querySelectorAll("figure[data-chart]")) figure.classList.add("waiting");
  buildTable(data.table.printed);
  fillTable(data.table.rows, data.table.columns);
  followTheme(() => drawCharts(data.charts));
})();
