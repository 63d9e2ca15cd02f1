/* Walks over adjacency lists in memory, without the interpreter's lock.
 *
 * A direction of the graph is a base (CSR) and, laid over it, whole lists of the nodes that changed since the base was made.
 * The caller owns every buffer; nothing is kept from one call to the next. All results are the same as those of
 * numpy_hops.py, which is the authority on what they mean.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAGE_BITS 8
#define PAGE_MASK 255
#define EDGES_BETWEEN_LOOKS 16384

enum { COMPLETE = 0, OUT_OF_TIME = 1, CANCELLED = 2, TOO_MANY = 3 };

enum { PTR, NBR, TYPE, CONF, PAGE_OF, PAGES, START, SIZE, P_NBR, P_TYPE, P_CONF, PARTS };

typedef struct {
    Py_buffer views[PARTS];
    int held[PARTS];
    int32_t base_nodes;
    const int64_t *ptr;
    const int32_t *nbr;
    const uint16_t *type;
    const uint8_t *conf;
    const int32_t *page_of, *pages;
    const int64_t *start;
    const int32_t *size;
    const int32_t *p_nbr;
    const uint16_t *p_type;
    const uint8_t *p_conf;
} Lists;

typedef struct {
    const int32_t *nbr;
    const uint16_t *type;
    const uint8_t *conf;
    int64_t len;
} List;

typedef struct {
    const uint16_t *group;     /* each node's ontology */
    const uint8_t *group_ok;   /* NULL: every node passes */
    const uint8_t *type_ok;    /* NULL: every type passes */
    int min_conf;
    int edges;                 /* whether edges have to be looked at */
} Filter;

typedef struct {
    const volatile int32_t *flag;
    double until;
    int64_t edges;
} Watch;

static void release_lists(Lists *lists)
{
    for (int i = 0; i < PARTS; i++)
        if (lists->held[i]) PyBuffer_Release(&lists->views[i]);
}

static int take_lists(PyObject *parts, Lists *lists)
{
    memset(lists, 0, sizeof *lists);
    if (!PyTuple_Check(parts) || PyTuple_GET_SIZE(parts) != PARTS) {
        PyErr_SetString(PyExc_TypeError, "a direction is a tuple of eleven arrays");
        return 0;
    }
    for (int i = 0; i < PARTS; i++) {
        PyObject *part = PyTuple_GET_ITEM(parts, i);
        if (part == Py_None) continue;
        if (PyObject_GetBuffer(part, &lists->views[i], PyBUF_SIMPLE) < 0) { release_lists(lists); return 0; }
        lists->held[i] = 1;
    }
#define PART(i) (lists->held[i] ? lists->views[i].buf : NULL)
    lists->base_nodes = (int32_t)(lists->views[PTR].len / 8 - 1);
    lists->ptr = PART(PTR);
    lists->nbr = PART(NBR);
    lists->type = PART(TYPE);
    lists->conf = PART(CONF);
    lists->page_of = PART(PAGE_OF);
    lists->pages = PART(PAGES);
    lists->start = PART(START);
    lists->size = PART(SIZE);
    lists->p_nbr = PART(P_NBR);
    lists->p_type = PART(P_TYPE);
    lists->p_conf = PART(P_CONF);
#undef PART
    return 1;
}

static inline List list_of(const Lists *lists, int32_t node)
{
    List list;
    if (lists->page_of) {
        int32_t slot = lists->pages[((int64_t)lists->page_of[node >> PAGE_BITS] << PAGE_BITS) | (node & PAGE_MASK)];
        if (slot >= 0) {
            int64_t at = lists->start[slot];
            list.nbr = lists->p_nbr + at;
            list.type = lists->p_type + at;
            list.conf = lists->p_conf + at;
            list.len = lists->size[slot];
            return list;
        }
        if (node >= lists->base_nodes) { list.nbr = NULL; list.type = NULL; list.conf = NULL; list.len = 0; return list; }
    }
    int64_t at = lists->ptr[node];
    list.nbr = lists->nbr + at;
    list.type = lists->type + at;
    list.conf = lists->conf + at;
    list.len = lists->ptr[node + 1] - at;
    return list;
}

static inline int edge_ok(const Filter *filter, const List *list, int64_t i)
{
    return (!filter->type_ok || filter->type_ok[list->type[i]]) && list->conf[i] >= filter->min_conf;
}

static inline int node_ok(const Filter *filter, int32_t node)
{
    return !filter->group_ok || filter->group_ok[filter->group[node]];
}

static int look(Watch *watch)
{
    struct timespec now;
    watch->edges = 0;
    if (*watch->flag) return CANCELLED;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9 >= watch->until ? OUT_OF_TIME : COMPLETE;
}

#define BIT(set, node) ((set)[(node) >> 6] >> ((node) & 63) & 1)
#define SET(set, node) ((set)[(node) >> 6] |= (uint64_t)1 << ((node) & 63))

typedef struct {
    const Lists *ways[2];      /* lists that are followed */
    const Lists *backs[2];     /* the same, backwards */
    int count;
} Walk;

static void set_ways(Walk *walk, const Lists *out, const Lists *in, int direction)
{
    walk->count = 0;
    if (direction & 1) { walk->ways[walk->count] = out; walk->backs[walk->count++] = in; }
    if (direction & 2) { walk->ways[walk->count] = in; walk->backs[walk->count++] = out; }
}

/* From each node of the frontier to those that were not seen. */
static int step_down(const Walk *walk, const Filter *filter, Watch *watch, uint64_t *seen, int32_t *found,
                     int64_t from, int64_t to, int64_t *count, int64_t most)
{
    int64_t total = *count;
    for (int64_t f = from; f < to; f++) {
        for (int w = 0; w < walk->count; w++) {
            List list = list_of(walk->ways[w], found[f]);
            for (int64_t i = 0; i < list.len; i++) {
                int32_t next = list.nbr[i];
                if (BIT(seen, next)) continue;
                if (filter->edges && !edge_ok(filter, &list, i)) continue;
                if (!node_ok(filter, next)) continue;
                SET(seen, next);
                found[total++] = next;
            }
            watch->edges += list.len;
        }
        if (watch->edges >= EDGES_BETWEEN_LOOKS) {
            int stop = look(watch);
            if (stop) { *count = total; return stop; }
        }
        if (total > most) { *count = total; return TOO_MANY; }
    }
    *count = total;
    return COMPLETE;
}

/* From each node that was not seen back to any of the frontier: cheaper when the frontier is much of the graph. */
static int step_up(const Walk *walk, const Filter *filter, Watch *watch, uint64_t *seen, const uint64_t *frontier,
                   int32_t nodes, int32_t *found, int64_t *count, int64_t most)
{
    int64_t total = *count;
    for (int32_t base = 0; base < nodes; base += 64) {
        uint64_t open = ~seen[base >> 6];
        if (nodes - base < 64) open &= ((uint64_t)1 << (nodes - base)) - 1;
        while (open) {
            int32_t node = base + __builtin_ctzll(open);
            open &= open - 1;
            if (!node_ok(filter, node)) continue;
            for (int w = 0; w < walk->count; w++) {
                List list = list_of(walk->backs[w], node);
                int64_t i = 0;
                for (; i < list.len; i++)
                    if (BIT(frontier, list.nbr[i]) && (!filter->edges || edge_ok(filter, &list, i))) break;
                watch->edges += i + 1;
                if (i < list.len) {
                    SET(seen, node);
                    found[total++] = node;
                    break;
                }
            }
        }
        if (watch->edges >= EDGES_BETWEEN_LOOKS) {
            int stop = look(watch);
            if (stop) { *count = total; return stop; }
        }
        if (total > most) { *count = total; return TOO_MANY; }
    }
    *count = total;
    return COMPLETE;
}

static int64_t edges_of(const Walk *walk, const int32_t *found, int64_t from, int64_t to)
{
    int64_t edges = 0;
    for (int64_t f = from; f < to; f++)
        for (int w = 0; w < walk->count; w++) edges += list_of(walk->ways[w], found[f]).len;
    return edges;
}

/* A level that is stopped halfway is given too: its nodes are at that distance, only more may be. */
static int run_reach(const Walk *walk, const Filter *filter, Watch *watch, int32_t nodes, int64_t edges, int64_t seeds,
                     int max_hops, int32_t *found, int64_t *level_end, int *levels, int64_t most)
{
    size_t words = ((size_t)nodes + 63) / 64;
    uint64_t *seen = calloc(words ? words : 1, 8), *frontier = NULL;
    int stop = COMPLETE;
    if (!seen) return -1;
    for (int64_t i = 0; i < seeds; i++) SET(seen, found[i]);
    int64_t from = 0, to = seeds, count = seeds;
    *levels = 0;
    for (int hop = 1; hop <= max_hops && from < to; hop++) {
        stop = look(watch);
        if (stop) break;
        int up = 0;
        if (to - from > nodes / 64) {
            up = edges_of(walk, found, from, to) > edges / 10;
        }
        if (up) {
            if (!frontier) frontier = malloc(words * 8);
            if (!frontier) { free(seen); return -1; }
            memset(frontier, 0, words * 8);
            for (int64_t f = from; f < to; f++) SET(frontier, found[f]);
            stop = step_up(walk, filter, watch, seen, frontier, nodes, found, &count, most);
        } else {
            stop = step_down(walk, filter, watch, seen, found, from, to, &count, most);
        }
        level_end[(*levels)++] = count;
        if (stop) break;
        from = to;
        to = count;
    }
    free(frontier);
    free(seen);
    return stop;
}

typedef struct {
    Lists out, in;
    Py_buffer group, group_ok, type_ok, flag;
    int has_group_ok, has_type_ok, taken;
    Filter filter;
    Watch watch;
    Walk walk;
} Call;

static int optional_buffer(PyObject *given, Py_buffer *view, int *has)
{
    *has = 0;
    if (given == Py_None) return 1;
    if (PyObject_GetBuffer(given, view, PyBUF_SIMPLE) < 0) return 0;
    *has = 1;
    return 1;
}

static void end_call(Call *call)
{
    release_lists(&call->out);
    release_lists(&call->in);
    if (call->has_group_ok) PyBuffer_Release(&call->group_ok);
    if (call->has_type_ok) PyBuffer_Release(&call->type_ok);
    if (call->taken) { PyBuffer_Release(&call->group); PyBuffer_Release(&call->flag); }
}

static int begin_call(Call *call, PyObject *out, PyObject *in, int direction, PyObject *group, PyObject *group_ok,
                      PyObject *type_ok, int min_conf, PyObject *flag, double until)
{
    memset(call, 0, sizeof *call);
    if (!take_lists(out, &call->out)) return 0;
    if (!take_lists(in, &call->in)) { release_lists(&call->out); return 0; }
    if (!optional_buffer(group_ok, &call->group_ok, &call->has_group_ok)) { end_call(call); return 0; }
    if (!optional_buffer(type_ok, &call->type_ok, &call->has_type_ok)) { end_call(call); return 0; }
    if (PyObject_GetBuffer(group, &call->group, PyBUF_SIMPLE) < 0) { end_call(call); return 0; }
    if (PyObject_GetBuffer(flag, &call->flag, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&call->group);
        end_call(call);
        return 0;
    }
    call->taken = 1;
    call->filter.group = call->group.buf;
    call->filter.group_ok = call->has_group_ok ? call->group_ok.buf : NULL;
    call->filter.type_ok = call->has_type_ok ? call->type_ok.buf : NULL;
    call->filter.min_conf = min_conf;
    call->filter.edges = call->has_type_ok || min_conf > 0;
    call->watch.flag = call->flag.buf;
    call->watch.until = until;
    set_ways(&call->walk, &call->out, &call->in, direction);
    return 1;
}

/* reach(out, in, direction, group, group_ok, type_ok, min_conf, flag, until,
 *       nodes, edges, seeds, max_hops, found, level_end, most) -> (levels, stop)
 * `found` begins with the seeds; after them come the nodes found, level by level, up to level_end[level]. */
static PyObject *reach(PyObject *self, PyObject *args)
{
    PyObject *out, *in, *group, *group_ok, *type_ok, *flag;
    Py_buffer found, level_end;
    int direction, min_conf, nodes, max_hops, levels = 0, stop;
    long long edges, seeds, most;
    double until;
    Call call;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOiOOOiOdiLLiw*w*L", &out, &in, &direction, &group, &group_ok, &type_ok, &min_conf,
                          &flag, &until, &nodes, &edges, &seeds, &max_hops, &found, &level_end, &most))
        return NULL;
    if (found.len < (Py_ssize_t)nodes * 4 || level_end.len < (Py_ssize_t)max_hops * 8) {
        PyErr_SetString(PyExc_ValueError, "the arrays for the result are too short");
        goto failed;
    }
    if (!begin_call(&call, out, in, direction, group, group_ok, type_ok, min_conf, flag, until)) goto failed;
    Py_BEGIN_ALLOW_THREADS
    stop = run_reach(&call.walk, &call.filter, &call.watch, nodes, edges, seeds, max_hops, found.buf, level_end.buf,
                     &levels, most);
    Py_END_ALLOW_THREADS
    end_call(&call);
    PyBuffer_Release(&found);
    PyBuffer_Release(&level_end);
    if (stop < 0) return PyErr_NoMemory();
    return Py_BuildValue("ii", levels, stop);
failed:
    PyBuffer_Release(&found);
    PyBuffer_Release(&level_end);
    return NULL;
}

#define BANNED 255

/* A breadth-first search from both ends, always the smaller side, and then the way with the lowest ids.
 * Distances are kept plus one; zero is unseen. */
typedef struct {
    uint8_t *near[2];          /* distance from the start, and to the goal */
    uint8_t *on;               /* lies on a shortest way, on the start's side */
    int32_t *queue[2];
    int64_t from[2], to[2];
    int depth[2];
} Search;

static int is_banned(const int32_t *nodes, int64_t count, int32_t node)
{
    for (int64_t i = 0; i < count; i++) if (nodes[i] == node) return 1;
    return 0;
}

typedef struct {
    int32_t start, goal;
    const int32_t *not_next;   /* nodes that may not follow the start directly */
    int64_t not_next_count;
    const int64_t *ids;
} Ends;

static int grow(const Walk *walk, const Filter *filter, Watch *watch, const Ends *ends, Search *search, int side,
                int *met)
{
    uint8_t *near = search->near[side], *other = search->near[1 - side];
    int32_t *queue = search->queue[side];
    int64_t end = search->to[side];
    int32_t free_end = side == 0 ? ends->goal : ends->start;
    for (int64_t f = search->from[side]; f < search->to[side]; f++) {
        int32_t node = queue[f];
        for (int w = 0; w < walk->count; w++) {
            List list = list_of(side == 0 ? walk->ways[w] : walk->backs[w], node);
            for (int64_t i = 0; i < list.len; i++) {
                int32_t next = list.nbr[i];
                if (near[next]) continue;
                if (filter->edges && !edge_ok(filter, &list, i)) continue;
                if (next != free_end && !node_ok(filter, next)) continue;
                if (side == 0 ? node == ends->start && is_banned(ends->not_next, ends->not_next_count, next)
                              : next == ends->start && is_banned(ends->not_next, ends->not_next_count, node))
                    continue;
                near[next] = (uint8_t)(search->depth[side] + 2);
                queue[end++] = next;
                if (other[next]) *met = 1;
            }
            watch->edges += list.len;
        }
        if (watch->edges >= EDGES_BETWEEN_LOOKS) {
            int stop = look(watch);
            if (stop) return stop;
        }
    }
    search->from[side] = search->to[side];
    search->to[side] = end;
    search->depth[side]++;
    return COMPLETE;
}

/* Marks what lies on a shortest way between the start and where the two sides met. */
static void mark_ways(const Walk *walk, const Filter *filter, const Ends *ends, Search *search, int32_t *work)
{
    int64_t count = 0, begin = 0;
    int a = search->depth[0], b = search->depth[1];
    /* The last level of either side is where they met; it is in both queues. */
    for (int64_t f = search->from[1]; f < search->to[1]; f++) {
        int32_t node = search->queue[1][f];
        if (search->near[0][node] == a + 1 && search->near[1][node] == b + 1) {
            search->on[node] = 1;
            work[count++] = node;
        }
    }
    for (int level = a; level > 1; level--) {
        int64_t end = count;
        for (int64_t f = begin; f < end; f++)
            for (int w = 0; w < walk->count; w++) {
                List list = list_of(walk->backs[w], work[f]);
                for (int64_t i = 0; i < list.len; i++) {
                    int32_t before = list.nbr[i];
                    if (search->near[0][before] != level || search->on[before]) continue;
                    if (filter->edges && !edge_ok(filter, &list, i)) continue;
                    search->on[before] = 1;
                    work[count++] = before;
                }
            }
        begin = end;
    }
    (void)ends;
}

static int walk_lowest(const Walk *walk, const Filter *filter, const Ends *ends, const Search *search, int32_t *way)
{
    int a = search->depth[0], length = a + search->depth[1];
    int32_t node = ends->start;
    way[0] = node;
    for (int hop = 1; hop <= length; hop++) {
        int32_t best = -1;
        for (int w = 0; w < walk->count; w++) {
            List list = list_of(walk->ways[w], node);
            for (int64_t i = 0; i < list.len; i++) {
                int32_t next = list.nbr[i];
                if (hop <= a ? search->near[0][next] != hop + 1 || !search->on[next]
                             : search->near[1][next] != length - hop + 1)
                    continue;
                if (best >= 0 && ends->ids[next] >= ends->ids[best]) continue;
                if (filter->edges && !edge_ok(filter, &list, i)) continue;
                if (node == ends->start && is_banned(ends->not_next, ends->not_next_count, next)) continue;
                best = next;
            }
        }
        if (best < 0) return -1;
        way[hop] = node = best;
    }
    return length;
}

static int run_shortest(const Walk *walk, const Filter *filter, Watch *watch, const Ends *ends, int32_t nodes,
                        int max_hops, const int32_t *avoid, int64_t avoid_count, int32_t *way, int *length)
{
    Search search;
    size_t size = (size_t)nodes;
    int stop = COMPLETE, met = 0;
    *length = -1;
    memset(&search, 0, sizeof search);
    search.near[0] = calloc(size, 1);
    search.near[1] = calloc(size, 1);
    search.on = calloc(size, 1);
    search.queue[0] = malloc(size * 4);
    search.queue[1] = malloc(size * 4);
    if (!search.near[0] || !search.near[1] || !search.on || !search.queue[0] || !search.queue[1]) { stop = -1; goto done; }
    for (int64_t i = 0; i < avoid_count; i++) search.near[0][avoid[i]] = search.near[1][avoid[i]] = BANNED;
    search.near[0][ends->start] = search.near[1][ends->goal] = 1;
    search.queue[0][0] = ends->start;
    search.queue[1][0] = ends->goal;
    search.to[0] = search.to[1] = 1;
    while (!met && search.depth[0] + search.depth[1] < max_hops) {
        int side = search.to[1] - search.from[1] < search.to[0] - search.from[0];
        stop = look(watch);
        if (!stop) stop = grow(walk, filter, watch, ends, &search, side, &met);
        if (stop) goto done;
        if (search.from[side] == search.to[side]) goto done;
    }
    if (!met) goto done;
    mark_ways(walk, filter, ends, &search, search.queue[0]);
    *length = walk_lowest(walk, filter, ends, &search, way);
done:
    free(search.near[0]);
    free(search.near[1]);
    free(search.on);
    free(search.queue[0]);
    free(search.queue[1]);
    return stop;
}

/* shortest(out, in, direction, group, group_ok, type_ok, min_conf, flag, until,
 *          nodes, ids, start, goal, max_hops, avoid, not_next, way) -> (length or -1, stop) */
static PyObject *shortest(PyObject *self, PyObject *args)
{
    PyObject *out, *in, *group, *group_ok, *type_ok, *flag;
    Py_buffer ids, avoid, not_next, way;
    int direction, min_conf, nodes, start, goal, max_hops, length = -1, stop;
    double until;
    Call call;
    Ends ends;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOiOOOiOdiy*iiiy*y*w*", &out, &in, &direction, &group, &group_ok, &type_ok, &min_conf,
                          &flag, &until, &nodes, &ids, &start, &goal, &max_hops, &avoid, &not_next, &way))
        return NULL;
    if (way.len < (Py_ssize_t)(max_hops + 1) * 4 || max_hops > 100 || ids.len < (Py_ssize_t)nodes * 8) {
        PyErr_SetString(PyExc_ValueError, "the arrays are too short for so many hops");
        goto failed;
    }
    if (!begin_call(&call, out, in, direction, group, group_ok, type_ok, min_conf, flag, until)) goto failed;
    ends.start = start;
    ends.goal = goal;
    ends.not_next = not_next.buf;
    ends.not_next_count = not_next.len / 4;
    ends.ids = ids.buf;
    Py_BEGIN_ALLOW_THREADS
    stop = run_shortest(&call.walk, &call.filter, &call.watch, &ends, nodes, max_hops, avoid.buf, avoid.len / 4,
                        way.buf, &length);
    Py_END_ALLOW_THREADS
    end_call(&call);
    PyBuffer_Release(&ids);
    PyBuffer_Release(&avoid);
    PyBuffer_Release(&not_next);
    PyBuffer_Release(&way);
    if (stop < 0) return PyErr_NoMemory();
    return Py_BuildValue("ii", length, stop);
failed:
    PyBuffer_Release(&ids);
    PyBuffer_Release(&avoid);
    PyBuffer_Release(&not_next);
    PyBuffer_Release(&way);
    return NULL;
}

typedef struct { int64_t degree, id; int32_t node; } Ranked;

/* Whether a stands behind b: a lower degree, or the same and a higher id. */
static inline int behind(const Ranked *a, const Ranked *b)
{
    return a->degree != b->degree ? a->degree < b->degree : a->id > b->id;
}

static void sink(Ranked *heap, int64_t count, int64_t at)
{
    for (;;) {
        int64_t last = at, left = 2 * at + 1;
        if (left < count && behind(&heap[left], &heap[last])) last = left;
        if (left + 1 < count && behind(&heap[left + 1], &heap[last])) last = left + 1;
        if (last == at) return;
        Ranked swapped = heap[at];
        heap[at] = heap[last];
        heap[last] = swapped;
        at = last;
    }
}

/* A heap of the best so far, its last one on top; most nodes are turned away by one comparison. */
static int64_t run_top(const Lists *out, const Lists *in, const int32_t *degree, const int64_t *ids,
                       const int32_t *nodes, int64_t count, int64_t limit, Ranked *heap)
{
    int64_t size = 0;
    for (int64_t i = 0; i < count; i++) {
        Ranked one;
        one.node = nodes[i];
        one.degree = degree ? degree[one.node] : list_of(out, one.node).len + list_of(in, one.node).len;
        if (size == limit && one.degree < heap[0].degree) continue;
        one.id = ids[one.node];
        if (size < limit) {
            heap[size++] = one;
            if (size == limit) for (int64_t at = size / 2 - 1; at >= 0; at--) sink(heap, size, at);
        } else if (behind(&heap[0], &one)) {
            heap[0] = one;
            sink(heap, size, 0);
        }
    }
    if (size < limit) for (int64_t at = size / 2 - 1; at >= 0; at--) sink(heap, size, at);
    for (int64_t end = size - 1; end > 0; end--) {
        Ranked swapped = heap[0];
        heap[0] = heap[end];
        heap[end] = swapped;
        sink(heap, end, 0);
    }
    return size;
}

/* top(out, in, degree or None, ids, nodes, limit, best, degrees) -> count
 * The nodes of the highest degrees, and among equals of the lowest ids, in that order. */
static PyObject *top(PyObject *self, PyObject *args)
{
    PyObject *out_parts, *in_parts, *degree_part;
    Py_buffer ids, nodes, best, degrees, degree;
    long long limit;
    int has_degree = 0, sound;
    int64_t size = 0;
    Lists out, in;
    Ranked *heap = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOy*y*Lw*w*", &out_parts, &in_parts, &degree_part, &ids, &nodes, &limit, &best,
                          &degrees))
        return NULL;
    sound = best.len >= limit * 4 && degrees.len >= limit * 8;
    if (!sound) PyErr_SetString(PyExc_ValueError, "the arrays for the result are too short");
    if (sound) sound = optional_buffer(degree_part, &degree, &has_degree);
    if (sound && (sound = take_lists(out_parts, &out))) {
        if ((sound = take_lists(in_parts, &in))) {
            heap = malloc((limit > 0 ? limit : 1) * sizeof *heap);
            if (heap && limit > 0) {
                Py_BEGIN_ALLOW_THREADS
                size = run_top(&out, &in, has_degree ? degree.buf : NULL, ids.buf, nodes.buf, nodes.len / 4, limit, heap);
                for (int64_t i = 0; i < size; i++) {
                    ((int32_t *)best.buf)[i] = heap[i].node;
                    ((int64_t *)degrees.buf)[i] = heap[i].degree;
                }
                Py_END_ALLOW_THREADS
            } else if (!heap) {
                PyErr_NoMemory();
                sound = 0;
            }
            free(heap);
            release_lists(&in);
        }
        release_lists(&out);
    }
    if (has_degree) PyBuffer_Release(&degree);
    PyBuffer_Release(&ids);
    PyBuffer_Release(&nodes);
    PyBuffer_Release(&best);
    PyBuffer_Release(&degrees);
    return sound ? PyLong_FromLongLong(size) : NULL;
}

static PyMethodDef methods[] = {
    {"top", top, METH_VARARGS, "The nodes of the highest degrees, in order."},
    {"reach", reach, METH_VARARGS, "Nodes around seeds, hop by hop."},
    {"shortest", shortest, METH_VARARGS, "The shortest way between two nodes that has the lowest ids."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_hops", "Walks over adjacency lists in memory.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__hops(void) { return PyModule_Create(&module); }
