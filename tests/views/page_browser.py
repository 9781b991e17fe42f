"""What tests of the page do in a browser, and what they see there."""

REFUSED = "Failed to load resource: the server responded with a status of 422 (Unprocessable Entity)"


def answers(page):
    return int(page.evaluate("document.documentElement.dataset.answers"))


def after(page, act):
    """Does something and waits for what follows from it."""
    before = answers(page)
    act()
    page.wait_for_selector(f'html[data-answers="{before + 1}"]')


def slide(page, name, value):
    after(
        page,
        lambda: page.locator(f"#{name}-slider").evaluate(
            "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true})); }",
            value,
        ),
    )


def chosen(page, name, data):
    page.set_input_files("#file", files=[{"name": name, "mimeType": "text/csv", "buffer": data}])


def figures(page):
    return page.locator("#headline dd").all_inner_texts()


def drawn(page, chart):
    return page.locator(f'figure[data-chart="{chart}"] .live').inner_html()


def drop(page, name, script):
    """Drops a file on the page, whose content is what the script gives."""
    page.evaluate(
        f"""(name) => {{
          const dropped = new DataTransfer();
          dropped.items.add(new File([{script}], name));
          document.querySelector(".drop").dispatchEvent(new DragEvent("drop", {{dataTransfer: dropped, bubbles: true}}));
        }}""",
        name,
    )


def rested(page, act):
    """Does something and waits until all that takes longer has followed."""
    before = int(page.evaluate("document.documentElement.dataset.rested ?? 0"))
    act()
    page.wait_for_selector(f'html[data-rested="{before + 1}"]')
