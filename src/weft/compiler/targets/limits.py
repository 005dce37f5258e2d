"""What a machine is good at, as numbers: sizes from which something pays, tiles, and rates.

Every stage that decides by such a number reads it from the limits of the target it is given, in
the record that bears the stage's name. The defaults were measured on a core with vectors of 16
floats, 32 vector registers and 1 MiB of second-level cache; a target gives others where it has
them. What depends on no machine (rounding, formats, bounds on the compiler's own work) stands in
the stage that uses it, and says so.

>>> from dataclasses import replace
>>> short = replace(Limits(), fusion=FusionLimits(expression_operations=20))
>>> short.fusion.expression_operations, short.plan == Limits().plan
(20, True)
"""

from __future__ import annotations

from weft.core.records import frozen

__all__ = ["FusionLimits", "Limits", "LoweringLimits", "PassLimits", "PlanLimits", "Rates"]


@frozen
class PassLimits:
    """From which sizes a rewrite of the graph pays; read by `graph_passes`."""

    attention_queries: int = 64
    """Queries from which the primitive `attention` stays one; with fewer it becomes products."""
    recognized_queries: int = 128
    """Queries from which attention that is written as products becomes the primitive; twice as many
    where no key is hidden by its place, as then no block of keys can be left out."""
    mask_operations: int = 24
    """Operations up to which a mask is computed for each head, and not once and then read."""
    lookups_per_row: int = 2
    """How many times each row of a table is looked up, on average, for the table to be multiplied
    in place of the rows."""
    divided_sum_elements: int = 32 * 1024
    """Elements from which a sum over everything is made row by row, which threads divide."""
    divided_sum_rows: int = 8
    """Rows that such a sum has at least: fewer do not fill the threads."""
    divided_sum_columns: int = 256
    """Elements of such a row at least: the partial results of each are combined, which takes as
    long as some hundred elements."""
    step_product_growth: int = 8
    """How many times as large as its operand the product over all steps of a loop may be: what it
    saves is lost again where it no longer fits the cache."""
    multiplies_short_floats: bool = False
    """Whether convolutions multiply 16-bit floats as they are; else they become float32 first."""
    sums_by_image: bool = True
    """Whether sums over images and places are made image by image first, while those are cached."""
    expands_matrix_functions: bool = True
    """Whether pseudo-inverses, adjugates and factorisations of 16-bit floats are written by others;
    else each is called as a whole by reference."""
    factor_table_elements: int = 1 << 18
    """Elements of the table of factors of an adjugate, which is part of a program; larger ones are
    left to the reference."""
    tall_product_rows: int = 1024
    """Rows from which a product is as fast in each step of a loop as over all steps at once."""


@frozen
class FusionLimits:
    """What is computed in one kernel; read by `fusion`."""

    recomputed_operations: int = 4
    """Operations up to which a value is computed again by each reader, which is cheaper than to
    write and read it."""
    recomputed_reads: int = 1 << 30
    """Values of as many elements that are read for a value which each reader computes again."""
    stores_narrow_floats: bool = False
    """Whether 16-bit floats are stored in place of what several readers widen them to: half the
    bytes, where memory is what takes time."""
    served_elements: int = 16
    """Elements of a value that is computed again for which one element of a small operand serves:
    the operand is then stored, and not computed with each of them."""
    cached_distance: int = 16
    """Nodes between the readers of an elementary function's value up to which it is kept: it is
    then still in cache."""
    expression_operations: int = 60
    """Operations of an expression before its parts are stored: more do not fit the registers."""
    kernel_weight: int = 1024
    """How much one kernel may hold, in operations (elementary functions count more): the code
    generator takes more than twice the time for twice the code."""
    undivided_sum_elements: int = 16 * 1024
    """Elements of a loop that may share a kernel with a sum over all of them; threads cannot
    divide such a kernel."""
    divided_join_elements: int = 4096
    """Elements from which a join is stored part by part, so that no element asks where it lies.

    A part costs a loop of its own, an element that asks a comparison for each part: so it is the
    elements that count, however many parts there are."""
    chunk_rows: int = 16
    """Rows of a chunk in which columns are summed, where they come out even."""
    fewest_chunk_rows: int = 8
    """Rows of a chunk at least: fewer write as much as they save."""
    most_chunk_rows: int = 64
    """Rows of a chunk at most: more leave too few chunks for the threads."""
    ragged_chunks: bool = True
    """Whether a last chunk may be shorter: where none come out even, or a size is a symbol."""
    chunk_elements: int = 0
    """Sums that all chunks together have at least, where chunks go over two axes; 0: they go over
    the last axis alone."""
    fewest_chunks: int = 0
    """Chunks that there should be: chunks of 32 rows and more are cut into halves for that."""
    early_elements: int = 0
    """Elements up to which a value that is made of given integers alone (labels, indices) is
    made before all others, so that what needs it waits for nothing else. 0: numbers alone."""
    chunked_rows: int = 64
    """Rows from which sums over them are made in chunks."""
    chunked_columns: int = 16
    """Columns from which they are: fewer are no work, and no vector."""


@frozen
class LoweringLimits:
    """Tiles and unrolled loops of kernels; read by `lowering`."""

    vector_lanes: int = 16
    """Floats in the widest vector register."""
    accumulators: int = 16
    """Vector registers that one pass adds to; the others hold operands."""
    accumulated_rows: int = 4
    """Rows that a product multiplies at a time: by four vectors of columns, all accumulators."""
    held_row_bytes: int = 256 * 1024
    """Bytes of a row up to which it is kept in scratch memory, which should stay in cache."""
    transposed_tile: int = 16
    """Rows, and columns, of the tiles of kernels that read along one axis and write along another:
    as many elements as a line of cache holds. 0: they go row by row."""
    product_block: int = 128
    """Rows, and columns, of one task of a product."""
    attention_block_queries: int = 64
    """Queries of one task of attention, at most."""
    causal_block_queries: int = 32
    """The same where later keys are hidden: a task multiplies up to the last key of any query."""
    attention_block_keys: int = 64
    """Keys whose scores are in scratch memory at a time."""
    divided_heads: int = 8
    """Heads, of all batches, from which a task of attention's gradient takes a whole one."""
    divided_head_key_blocks: int = 4
    """Blocks of keys that a task takes where there are fewer heads."""
    convolution_block_places: int = 256
    """About how many output places one task of a convolution has."""
    fewest_block_places: int = 64
    """Output places that it has at least."""
    convolution_tasks: int = 8
    """Tasks that there should be, to fill the threads, if the images are so many."""
    patch_elements: int = 1 << 16
    """Elements of patches that one task copies at a time: a quarter of the second-level cache."""
    weight_gradient_channels: int = 32
    """Input channels of one task of the gradient of a convolution's weights."""
    unrolled_depthwise_taps: int = 49
    """Taps up to which the window of a depthwise convolution is written out."""
    unrolled_window_taps: int = 64
    """Taps up to which the window of a pooling is written out."""
    scatter_block_elements: int = 64
    """Elements of a row that one iteration of a divided scatter takes: a cache line and more."""
    near_row_elements: int = 8
    """Elements from one row to the next up to which rows of a few values go in vectors: each vector
    then reads every so many elements, which costs less than rows by themselves."""
    scanned_lines: int = 16
    """Lines of neighbours that running sums go along side by side, in vectors: as many as hide that
    each step waits for the one before. Half as many make a start worth it; 0: each line alone."""
    steps_at_once: int = 16
    """Steps of a line by itself that are made in registers, before what is known goes to memory."""
    conflict_bytes: int = 1024
    """Places apart by a multiple of so many bytes evict each other, as a first-level cache of 64
    sets of lines has 4 for them; 0: there are none."""
    guards_places: bool = False
    """Whether a kernel that writes to places that are data looks itself whether they are within:
    where launches run beside the host, none can be held back when a check before it has failed."""
    divided_reduction_elements: int = 0
    """Elements from which the blocks of a reduction of everything are a launch of their own, which
    threads divide; a count that is not known may be as many. 0: they never are."""
    random_word_operations: int = 8
    """Element operations that take as long as one random word."""


@frozen
class PlanLimits:
    """Chunks, blocks of rows and groups of launches; read by `plan`."""

    chunk_operations: int = 32 * 1024
    """About how many element operations one chunk of a divided launch is."""
    step_chunk_operations: int = 4096
    """The same in the steps of a loop, between which threads do not go to sleep."""
    filling_chunks: float = 64.0
    """Chunks from which a launch fills all threads alone."""
    filling_update_chunks: float | None = None
    """The same for updates of state, and for what is brought to the start; None: no other."""
    gathered_bytes: int = 0
    """Bytes up to which a launch that only updates wait for is brought to the end, to run with
    others as one; what reads inputs alone is brought to the start then. For machines on which a
    launch takes longer than to read as much from memory. 0: each is where it was."""
    side_by_side: int = 0
    """Launches of a program up to which those that do not wait for each other run at once."""
    row_block_bytes: int = 384 * 1024
    """Bytes of a block of rows that fused launches pass on to each other in cache."""
    row_blocks: int = 16
    """Blocks that rows are cut into where no product asks for more."""
    fewest_block_rows: int = 24
    """Rows of a block, at least."""
    most_rounded_rows: int = 96
    """Rows up to which a block is rounded to whole tiles."""
    tile_rows: int = 6
    """Rows of a product's tile in registers."""
    most_iteration_rows: int = 256
    """Rows that one iteration of a fused launch may have."""
    fused_launches: int = 6
    """Launches that one product is fused with, at most: each wants its rows in cache. With 0 no
    launches are fused by rows."""
    column_sum_teams: int = 0
    """Teams that share a chunk of rows, where a kernel over rows makes sums down their columns;
    0: such sums are kernels of their own, whose rows come from cache."""
    column_sum_bytes: int = 40 * 1024
    """Bytes of such sums of all teams."""
    cache_line_bytes: int = 64
    """What values in scratch memory are aligned to."""
    overlapped_bytes: int = 1 << 16
    """Bytes below which a collective takes no longer than to wake the thread that would make it. It
    begins no overlap, but may run behind others that have begun."""


@frozen
class Rates:
    """About what one core does in a second; `memory_budget` weighs what to compute again."""

    product_operations: float = 7e10
    """Operations of products and convolutions."""
    attention_operations: float = 5.5e10
    """Operations of attention, of which a causal one has half."""
    element_operations: float = 1e10
    """Element-wise operations."""
    memory_bytes: float = 6e9
    """Bytes that are read or written."""
    loop_operations: float = 1e9
    """Operations of products that a loop or a choice is taken for, beside what it holds."""


@frozen
class Limits:
    """All limits of a machine, by the stage that reads them."""

    passes: PassLimits = PassLimits()
    fusion: FusionLimits = FusionLimits()
    lowering: LoweringLimits = LoweringLimits()
    plan: PlanLimits = PlanLimits()
    rates: Rates = Rates()
