"""Random jobs for property tests."""

from hypothesis import strategies as st

from hetccl.topo import Interface, Rank

text = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=6)
bandwidths = st.one_of(st.integers(1, 10**12), st.integers(1, 400).map(lambda n: n * 125_000_000))


@st.composite
def jobs(draw, most=12):
    """Ranks of up to four vendors on up to four hosts with up to three interfaces, in any arrangement."""
    hosts = {
        f"host{number}": tuple(
            Interface(f"eth{index}", f"10.{number}.{index}.1", draw(bandwidths))
            for index in range(draw(st.integers(0, 3)))
        )
        for number in range(draw(st.integers(1, 4)))
    }
    ranks = []
    for number in range(draw(st.integers(1, most))):
        host = draw(st.sampled_from(sorted(hosts)))
        ranks.append(
            Rank(
                number,
                host=host,
                vendor=draw(st.sampled_from(["gloo", "mpi", "nccl", "hccl"])),
                library=draw(st.sampled_from(["one", "two"])),
                version=draw(text),
                label=draw(st.sampled_from(["", "a", "b"])),
                device=draw(st.sampled_from(["cpu", "cuda"])),
                interfaces=hosts[host],
                paths=draw(st.lists(st.tuples(text, text), max_size=2).map(tuple)),
            )
        )
    return ranks
