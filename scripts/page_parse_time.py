"""How long the page of an engine holds the loop: CPU time of parsing the recorded page of vLLM 0.33, repeated to 74 KB."""

from time import process_time

from stayfast.lab.engine_pages import recorded_pages
from stayfast.wire.engines.page import MetricsPage, split_page
from stayfast.wire.engines.reading import compare_readings, make_signals, read_page

N_BYTES, N = 74_000, 200


def main() -> None:
    (text,) = [page.after for page in recorded_pages() if page.name == "vllm-0.33"]
    page_text = (text * (N_BYTES // len(text) + 1))[:N_BYTES]
    times: list[tuple[float, float, float]] = []
    for _ in range(N):
        page, longest, began = MetricsPage(), 0.0, process_time()
        for piece in split_page(page_text):
            at = process_time()
            page.add(piece)
            longest = max(longest, process_time() - at)
        parsed = process_time()
        reading = read_page(page)
        assert reading is not None
        make_signals(reading, compare_readings(reading, reading, 1.0), 0.0)
        times.append((process_time() - began, longest, process_time() - parsed))
    for name, values in zip(("whole page", "longest piece", "figures"), zip(*times, strict=True), strict=True):
        ordered = sorted(values)
        print(f"{name}: median {1e3 * ordered[N // 2]:.2f} ms, p95 {1e3 * ordered[int(0.95 * N)]:.2f} ms")


if __name__ == "__main__":
    main()
