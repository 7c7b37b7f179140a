/* The recorder in C: the fast path of tape/recording/record.py, and the data that it reads.

The recorder in Python defines what an op on Variables does.  Here is the common case of it only: the thread has a pending segment, the
structure was met before, and what enters are leaves of arrays, numbers and arrays.  Whatever else it is, a function below says "not here"
(it returns NULL without an exception), has changed nothing, and the recorder in Python does it all.

The steps of `fast`:
  enter    what an input is in the segment: a slot that it has, or the one that it gets as a leaf; the trie says which state follows
  look up  the child of that state by (op, slots), which knows the places of the results: mostly the one that was found last
  commit   one check, and then leaves, cells and the new state are stored in one breath: nothing in between calls Python, frees an object or
           allocates one that the garbage collector knows, so no other thread and no signal comes between (see Segment in graph/segment.py)
  hand out the Variables of the results
A cell is referred to by those who referred to it before and by the segment, for its reference count tells whether a Variable holds it.

Beside that, the loops over all leaves or results of a step stand here, each of them a function of the same name in Python (`held`, `gathered`,
`stored`, `handed`, `emptied`, `arrived`, `assigned`, `lacking`, `entered`): `handed`, `arrived`, `assigned` and `entered` leave what is not the common case to
that one.  `replayed` is a whole call of backward() that was made before, up to the run, `swept_apart` one from what has run already, `regained` one of gradients(), `emitted` what a sweep writes for
one segment, `swept_on` a sweep as long as it comes to segments that it knows (`forgot` lets go of them), `updated` an optimizer's update, `overwritten` what `x -= y` stores; a `Function` that `does` such a thing is the whole call, and begins in Python only what is new; so is
a call of tape.jit like the one before (`stepped`), and where a mode is entered or left (`switched`).  A segment
begins here as the one before began (`begun_again`).  `Numbers` is a program whose numbers are what they were, `Buffered` one that is given arrays and numbers in buffers.  `Gradient` and `Value` are properties of Variables.  `launched` is a run whose program is compiled, from the cells of its leaves to those of
its results, but for gradients that wait until somebody looks (`defer`); a look at a value (`Value`, and the numbers that a `Function` reads) makes it without
going through Python.

Structures are the bases of Python classes (tape/layout.py), with the same attributes as those of the recorder in Python.
*/

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define CONTRACT 29 /* as in tape/layout.py */

#ifdef Py_GIL_DISABLED
#error "the recorder in C needs the GIL; the one in Python runs without it"
#endif

/* -- structures ------------------------------------------------------------------------------------------------------------------------ */

typedef struct { PyObject *slot, *cell; } Result;

#define NEAR 8
#define CALLS 4 /* of a function that are found at once */

typedef struct { PyObject_HEAD PyObject *cell, *segment, *place, *extra, *weak; } Handle;
typedef struct { PyObject_HEAD PyObject *slot, *kind; } Place;
typedef struct { PyObject_HEAD PyObject *aval, *requires_grad, *unrecorded; } Kind;
typedef struct { PyObject_HEAD PyObject *kernel, *inputs, *slots, *where, *depth; } Step;
typedef struct { PyObject_HEAD PyObject *kernel, *inputs, *slots, *where, *depth, *next, *n_slots, *place, *several, *quick, *latest, *child; } State;
typedef struct {
    PyObject_HEAD
    PyObject *epoch, *configuration, *state, *lock, *serial, *generation, *released, *packing, *scalars; /* what it begins with */
    PyObject *trace, *run, *ways, *open;
    PyObject *cells, *entered, *origins, *leaf_lines, *functions, *hooks, *lines, *retained; /* dicts */
    PyObject *leaves, *borrowed, *leaf_places;                                              /* lists */
    PyObject *weak;
    Result *recent; /* those of `cells` that are not in that dict yet, in order: they come there when somebody asks, which is mostly nobody */
    Py_ssize_t n_recent, room, most; /* most: no slot among them is larger */
    struct { PyObject *cell, *slot; Py_ssize_t at; } near[NEAR]; /* leaves that entered last, and where they are among `leaves`, which holds the cell */
} Segment;
typedef struct { PyObject_HEAD PyObject *epoch; } Changes;
typedef struct { PyObject_HEAD PyObject *executable, *kept, *live, *roots, *site, *size; } Choice; /* what a run computes and keeps */
typedef struct { PyObject_HEAD PyObject *program, *groups, *others; vectorcallfunc call; } Buffered; /* a program that is given arrays and numbers in buffers */
typedef struct { PyObject_HEAD PyObject *way; long long calls, until; vectorcallfunc call; } Numbers; /* a program that is given numbers */
typedef struct { PyObject_HEAD long long hits, executed, ended; } Counts;
typedef struct { /* a step of tape.jit on certain Variables, as tape/jitting/binding.py has it: lists, but for those of the last line;
                    fresh: None where results come from Python */
    PyObject_HEAD
    PyObject *pinned, *leaves, *edges, *variables, *places, *looked, *read, *values, *grads, *donated, *donors, *donor_extras, *written, *cleared, *fresh;
    PyObject *executable, *strangers, *seen, *structure, *plainly;
} Bound;
typedef struct {
    PyObject_HEAD
    PyObject *segment, *scope, *outset; /* outset: what the segment begun last began with, whatever the grad mode, as long as that holds; None otherwise */
    PyObject *gave;                     /* whether a Variable that requires grad gave its value to Python */
    PyObject *begun;                    /* held while the recorder in Python goes on with it */
} Thread;
typedef struct { PyObject_HEAD PyObject *make; } Local;
typedef struct {
    PyObject_HEAD
    PyObject *slow, *known, *roles, *one, *two, *through, *starts, *plans, *reads, *latest[CALLS], *dict, *weak;
    int swapped, does, turn; /* does: one of those below; turn: the oldest one of `latest` */
    vectorcallfunc call;
} Function;
typedef struct { PyObject *dict; } Attribute; /* what follows a property */

/* PyObject_TypeCheck for a type of this file: what derives from it has it among its bases of C, one or two steps up. */
static inline int
is_a(const void *object, const PyTypeObject *wanted)
{
    const PyTypeObject *type = Py_TYPE((PyObject *)object);
    while (type != NULL && type != wanted) {
        type = type->tp_base;
    }
    return type != NULL;
}

static void
clear_fields(PyObject **first, PyObject **end)
{
    for (; first < end; first++) {
        Py_CLEAR(*first);
    }
}

static int
visit_fields(PyObject **first, PyObject **end, visitproc visit, void *arg)
{
    for (; first < end; first++) {
        Py_VISIT(*first);
    }
    return 0;
}

/* The fields of a structure from `first` up to `end`, which is not one of them, all of which are objects. */
#define COLLECTED(Type, first, last)                                                                                                        \
    static int Type##_traverse(PyObject *self, visitproc visit, void *arg)                                                                  \
    {                                                                                                                                       \
        return visit_fields(&((Type *)self)->first, &((Type *)self)->last + 1, visit, arg);                                                 \
    }                                                                                                                                       \
    static int Type##_clear(PyObject *self)                                                                                                 \
    {                                                                                                                                       \
        clear_fields(&((Type *)self)->first, &((Type *)self)->last + 1);                                                                    \
        return 0;                                                                                                                           \
    }
#define FREED(Type, forget_weak)                                                                                                            \
    static void Type##_dealloc(PyObject *self)                                                                                              \
    {                                                                                                                                       \
        PyObject_GC_UnTrack(self);                                                                                                          \
        forget_weak;                                                                                                                        \
        Type##_clear(self);                                                                                                                 \
        Py_TYPE(self)->tp_free(self);                                                                                                       \
    }
#define WEAKLY(Type) if (((Type *)self)->weak != NULL) PyObject_ClearWeakRefs(self)
#define MEMBER(Type, name, field) {name, T_OBJECT_EX, offsetof(Type, field), 0, NULL}

COLLECTED(Handle, cell, extra)
FREED(Handle, WEAKLY(Handle))
COLLECTED(Place, slot, kind)
FREED(Place, )
COLLECTED(Kind, aval, unrecorded)
FREED(Kind, )
COLLECTED(Step, kernel, depth)
FREED(Step, )
COLLECTED(State, kernel, child)
FREED(State, )
static void forget_leaves(Segment *segment);
static void drop_recent(Segment *segment);

static int
Segment_traverse(PyObject *self, visitproc visit, void *arg)
{
    Segment *segment = (Segment *)self;
    for (Py_ssize_t i = 0; i < segment->n_recent; i++) {
        Py_VISIT(segment->recent[i].cell);
    }
    return visit_fields(&segment->epoch, &segment->leaf_places + 1, visit, arg);
}

static int
Segment_clear(PyObject *self)
{
    Segment *segment = (Segment *)self;
    forget_leaves(segment);
    drop_recent(segment);
    clear_fields(&segment->epoch, &segment->leaf_places + 1);
    return 0;
}

FREED(Segment, WEAKLY(Segment))
COLLECTED(Changes, epoch, epoch)
FREED(Changes, )
COLLECTED(Choice, executable, size)
FREED(Choice, )
COLLECTED(Bound, pinned, plainly)
FREED(Bound, )
COLLECTED(Numbers, way, way)
FREED(Numbers, )
COLLECTED(Buffered, program, others)
FREED(Buffered, )
COLLECTED(Thread, segment, begun)
static void forget_thread(PyObject *thread);
FREED(Thread, forget_thread(self))
COLLECTED(Local, make, make)
FREED(Local, )
COLLECTED(Function, slow, dict)
FREED(Function, WEAKLY(Function))

static PyMemberDef Handle_members[] = {
    MEMBER(Handle, "_cell", cell), MEMBER(Handle, "_segment", segment), MEMBER(Handle, "_place", place), MEMBER(Handle, "_extra", extra), {NULL}};
static PyMemberDef Place_members[] = {MEMBER(Place, "slot", slot), MEMBER(Place, "kind", kind), {NULL}};
static PyMemberDef Kind_members[] = {
    MEMBER(Kind, "aval", aval), MEMBER(Kind, "requires_grad", requires_grad), MEMBER(Kind, "unrecorded", unrecorded), {NULL}};
static PyMemberDef Step_members[] = {MEMBER(Step, "kernel", kernel), MEMBER(Step, "inputs", inputs), MEMBER(Step, "slots", slots),
                                     MEMBER(Step, "where", where),   MEMBER(Step, "depth", depth),   {NULL}};
static PyMemberDef State_members[] = {MEMBER(State, "next", next),       MEMBER(State, "n_slots", n_slots), MEMBER(State, "place", place),
                                      MEMBER(State, "several", several), MEMBER(State, "quick", quick),     MEMBER(State, "latest", latest), {NULL}};
static PyMemberDef Segment_members[] = {
    MEMBER(Segment, "epoch", epoch), MEMBER(Segment, "configuration", configuration), MEMBER(Segment, "state", state),
    MEMBER(Segment, "lock", lock), MEMBER(Segment, "serial", serial), MEMBER(Segment, "generation", generation),
    MEMBER(Segment, "released", released), MEMBER(Segment, "packing", packing), MEMBER(Segment, "scalars", scalars),
    MEMBER(Segment, "trace", trace), MEMBER(Segment, "run", run), MEMBER(Segment, "open", open),
    MEMBER(Segment, "entered", entered),
    MEMBER(Segment, "origins", origins), MEMBER(Segment, "leaf_lines", leaf_lines), MEMBER(Segment, "functions", functions),
    MEMBER(Segment, "hooks", hooks), MEMBER(Segment, "lines", lines), MEMBER(Segment, "retained", retained),
    MEMBER(Segment, "ways", ways), MEMBER(Segment, "leaves", leaves),
    MEMBER(Segment, "borrowed", borrowed), MEMBER(Segment, "leaf_places", leaf_places), {NULL}};
static PyMemberDef Changes_members[] = {MEMBER(Changes, "epoch", epoch), {NULL}};
static PyMemberDef Choice_members[] = {MEMBER(Choice, "executable", executable), MEMBER(Choice, "kept", kept), MEMBER(Choice, "live", live),
                                       MEMBER(Choice, "roots", roots), MEMBER(Choice, "site", site), MEMBER(Choice, "size", size), {NULL}};
static PyMemberDef Bound_members[] = {
    MEMBER(Bound, "_pinned", pinned), MEMBER(Bound, "_leaves", leaves), MEMBER(Bound, "_edges", edges), MEMBER(Bound, "_variables", variables), MEMBER(Bound, "_places", places),
    MEMBER(Bound, "_looked", looked), MEMBER(Bound, "_read", read), MEMBER(Bound, "_values", values), MEMBER(Bound, "_grads", grads),
    MEMBER(Bound, "_donated", donated), MEMBER(Bound, "_donors", donors), MEMBER(Bound, "_donor_extras", donor_extras),
    MEMBER(Bound, "_written", written), MEMBER(Bound, "_cleared", cleared), MEMBER(Bound, "_fresh", fresh), MEMBER(Bound, "executable", executable),
    MEMBER(Bound, "_strangers", strangers), MEMBER(Bound, "_hooks_seen", seen), MEMBER(Bound, "_structure", structure),
    MEMBER(Bound, "_plainly", plainly), {NULL}};
static PyMemberDef Counts_members[] = {
    {"hits", T_LONGLONG, offsetof(Counts, hits), 0, NULL}, {"executed", T_LONGLONG, offsetof(Counts, executed), 0, NULL},
    {"entries_ended", T_LONGLONG, offsetof(Counts, ended), 0, NULL}, {NULL}};
static PyMemberDef Buffered_members[] = {MEMBER(Buffered, "_program", program), MEMBER(Buffered, "_groups", groups),
                                         MEMBER(Buffered, "_others", others), {NULL}};
static PyMemberDef Numbers_members[] = {MEMBER(Numbers, "_way", way), {"_calls", T_LONGLONG, offsetof(Numbers, calls), 0, NULL},
                                        {"_until", T_LONGLONG, offsetof(Numbers, until), 0, NULL}, {NULL}};
static PyMemberDef Function_members[] = {MEMBER(Function, "slow", slow), MEMBER(Function, "known", known), MEMBER(Function, "roles", roles), {NULL}};

#define STRUCTURE(Type, text, ...)                                                                                                          \
    static PyTypeObject Type##_type = {                                                                                                     \
        PyVarObject_HEAD_INIT(NULL, 0)                                                                                                      \
        .tp_name = "tape._recorder." #Type,                                                                                                 \
        .tp_doc = text,                                                                                                                     \
        .tp_basicsize = sizeof(Type),                                                                                                       \
        .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,                                                          \
        .tp_traverse = Type##_traverse,                                                                                                     \
        .tp_clear = Type##_clear,                                                                                                           \
        .tp_dealloc = Type##_dealloc,                                                                                                       \
        .tp_free = PyObject_GC_Del,                                                                                                         \
        __VA_ARGS__}

STRUCTURE(Handle, "The recorder's side of a Variable.", .tp_members = Handle_members, .tp_weaklistoffset = offsetof(Handle, weak));
STRUCTURE(Place, "One slot of a segment.", .tp_members = Place_members);
STRUCTURE(Kind, "What is known of a value without its value.", .tp_members = Kind_members);
STRUCTURE(Step, "One line of a tape.", .tp_members = Step_members);
STRUCTURE(State, "One prefix of a tape.", .tp_members = State_members, .tp_base = &Step_type);
static void Segment_finalize(PyObject *self);
static PyGetSetDef Segment_attributes[2];
STRUCTURE(Segment, "The pending part of a tape.", .tp_members = Segment_members, .tp_getset = Segment_attributes,
          .tp_weaklistoffset = offsetof(Segment, weak), .tp_finalize = Segment_finalize);
STRUCTURE(Changes, "The number of the present settings.", .tp_members = Changes_members);
STRUCTURE(Choice, "What a run computes and keeps, and how.", .tp_members = Choice_members);
STRUCTURE(Bound, "A step on the Variables that it concerns.", .tp_members = Bound_members);
STRUCTURE(Thread, "What the recorder knows of one thread.");

static PyTypeObject Counts_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tape._recorder.Counts",
    .tp_doc = "What is counted at every run.",
    .tp_basicsize = sizeof(Counts),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_members = Counts_members};

/* -- what Python told at import (connect) ---------------------------------------------------------------------------------------------- */

enum { BEFORE, CACHE, CUT, ENDS, FULL, HASH, HAZARD, KNOWN, LENGTH, LINES, MODE, OP, PARENT, PLACES, SEEN, TABLE, USED, STATE_FIELDS };
static const char *const state_fields[STATE_FIELDS] = {"_before", "_cache", "cut",  "ends", "full",   "hash",   "hazard", "known", "_length",
                                                       "lines",   "mode",   "op",   "parent", "places", "seen", "table", "used"};

static struct {
    PyObject *variable, *record, *begun, *node_of, *nobody, *changes, *concrete, *arrays, *kinds, *copied, *numpy, *generic, *dtype, *array_mark, *number_mark;
    PyObject *copies, *x64, *kinds_of_copies; /* copies of NumPy arrays, what tells whether there are 64-bit types, and the kinds of copies */
    Py_ssize_t most; /* of those copies */
    Py_ssize_t caller, forward, trace; /* positions in a scope */
    PyObject *follow, *staged, *endless, *state, *step, *plain_place, *made_place, *nowhere;
    Py_ssize_t made, own[STATE_FIELDS]; /* where fields lie that Python has added */
    PyObject *growth; /* the module whose LIMIT are the segments behind each other, and multiples of them, at which somebody looks whether a tape grows */
    PyObject *op, *axes_are_named, *named_axes, *enter, *foreign, *others, *met, *clock; /* what states are made with that were not met (continues) */
    Py_ssize_t room, entries, leaves; /* so many numbers of states are kept in `met`, and before so many of these no tape is too long */
    int sequence;               /* the role of an argument that takes several arrays */
} told;

enum { CODE, COUNT, DUE, INSTRUCTION, REASON, SITE_FIELDS };
static const char *const site_fields[SITE_FIELDS] = {"code", "count", "due", "instruction", "reason"};

enum { ASSIGNED, GRAD, NODE, POST_HOOKS, UPDATER, EXTRA_FIELDS };
static const char *const extra_fields[EXTRA_FIELDS] = {"assigned", "grad", "node", "post_hooks", "updater"};
enum { HOOKS, REF, NODE_FIELDS };
static const char *const node_fields[NODE_FIELDS] = {"hooks", "ref"};

static struct { /* what Python told of what few Variables have, and of where gradients go (connect) */
    PyObject *extra, *node; /* types */
    Py_ssize_t in_extra[EXTRA_FIELDS], in_node[NODE_FIELDS];
} parts;

static struct { /* what Python told of runs (launches) */
    PyObject *counts, *clock, *site, *files, *meters, *places, *calm, *shared, *heavy, *run, *nothing, *no_segment; /* data */
    PyObject *in_trace, *trim, *finish, *over;                                                                         /* functions */
    PyObject *rules, *assigning, *assign, *accumulate, *finished, *trimmed; /* what sweeps are written again with (sweeping) */
    Py_ssize_t reproducible, own[SITE_FIELDS];
} runs;

static struct { /* what Python told of segments (begins) */
    PyObject *segment, *segments, *counts, *roots, *trie, *lock, *serials, *none, *constant;
    Py_ssize_t staged, eager, packing, observer, notes; /* positions in a scope */
} begin;

static PyObject *thread_key, *name_aval, *name_shape, *name_scalars, *name_positions, *name_rest, *name_names, *name_state, *name_results,
    *name_released, *name_cut, *name_made, *name_ends,
    *name_externals, *name_entries, *name_table, *name_single, *name_several, *name_visible, *name_cache, *name_vjp, *name_own_kinds, *name_kinds,
    *name_kernel_of, *name_filename, *name_limit, *name_forms, *name_leaf, *name_now, *name_light, *name_host, *name_program, *name_look,
    *name_acquire, *name_release, *name_append, *name_before, *name_later, *name_others, *name_count, *name_room, *name_revision, *name_backward, *name_create_graph, *name_run,
    *name_places, *name_slots, *name_first, *name_step, *name_segment, *name_patterns, *name_keywords, *name_ordered,
    *name_quick, *name_fill, *name_called, *name_failed, *name_unflatten, *name_hooks_count, *name_contents, *name_dtype, *name_deliver, *name_seeds, *name_order, *name_spent, *name_plan, *name_leaves, *name_straight, *name_hazard, *name_astype, *name_setflags, *name_in_order,
    *name_instructions, *number_one,
    *name_value;

/* -- threads --------------------------------------------------------------------------------------------------------------------------- */

static struct { /* the thread that asked last: every op asks, and a look-up in the thread's dict would be a twelfth of what it costs */
    PyThreadState *state;
    uint64_t id; /* a state's address may come again, its number does not */
    Thread *thread;
} asked;

/* Return what is known of this thread (borrowed), NULL where nobody asked in it so far. */
static Thread *
this_thread(void)
{
    PyThreadState *state = PyThreadState_Get();
    if (asked.state == state && asked.id == state->id) {
        return asked.thread;
    }
    PyObject *held = PyThreadState_GetDict();
    Thread *thread = held == NULL ? NULL : (Thread *)PyDict_GetItemWithError(held, thread_key);
    if (thread != NULL) {
        asked.state = state;
        asked.id = state->id;
        asked.thread = thread;
    }
    return thread;
}

static void
forget_thread(PyObject *thread)
{
    if ((PyObject *)asked.thread == thread) {
        asked.state = NULL;
        asked.thread = NULL;
    }
}

/* The same for Python: made at the first meeting. */
static Thread *
thread_of(Local *self)
{
    Thread *thread = this_thread();
    if (thread != NULL || PyErr_Occurred()) {
        return thread;
    }
    PyObject *first = PyObject_CallNoArgs(self->make);
    if (first == NULL) {
        return NULL;
    }
    PyObject *held = PyThreadState_GetDict();
    if (held == NULL || !PyTuple_Check(first) || PyTuple_GET_SIZE(first) != 2) {
        PyErr_SetString(PyExc_RuntimeError, "a thread begins with its segment and its scope");
        Py_DECREF(first);
        return NULL;
    }
    thread = PyObject_GC_New(Thread, &Thread_type);
    if (thread != NULL) {
        thread->segment = Py_NewRef(PyTuple_GET_ITEM(first, 0));
        thread->scope = Py_NewRef(PyTuple_GET_ITEM(first, 1));
        thread->outset = Py_NewRef(Py_None);
        thread->gave = Py_NewRef(Py_False);
        thread->begun = NULL;
        PyObject_GC_Track((PyObject *)thread);
        int failed = PyDict_SetItem(held, thread_key, (PyObject *)thread);
        Py_DECREF(thread); /* the dict holds it */
        thread = failed ? NULL : thread;
    }
    Py_DECREF(first);
    return thread;
}

static PyObject *
Local_get(PyObject *self, void *at)
{
    Thread *thread = thread_of((Local *)self);
    return thread == NULL ? NULL : Py_NewRef(*(PyObject **)((char *)thread + (Py_ssize_t)at));
}

static int
Local_set(PyObject *self, PyObject *value, void *at)
{
    Thread *thread = thread_of((Local *)self);
    if (thread == NULL) {
        return -1;
    }
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "a thread always has one");
        return -1;
    }
    PyObject **field = (PyObject **)((char *)thread + (Py_ssize_t)at), *old = *field;
    *field = Py_NewRef(value);
    Py_DECREF(old);
    return 0;
}

static PyObject *
Local_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *make;
    if (!PyArg_ParseTuple(args, "O", &make)) {
        return NULL;
    }
    Local *self = (Local *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->make = Py_NewRef(make);
    }
    return (PyObject *)self;
}

static PyGetSetDef Local_attributes[] = {
    {"segment", Local_get, Local_set, "a weak reference to the pending segment", (void *)offsetof(Thread, segment)},
    {"scope", Local_get, Local_set, "what holds for the ops", (void *)offsetof(Thread, scope)},
    {"outset", Local_get, Local_set, "what segments begin with", (void *)offsetof(Thread, outset)},
    {"gave", Local_get, Local_set, "whether a Variable that requires grad gave its value", (void *)offsetof(Thread, gave)},
    {NULL}};
STRUCTURE(Local, "The recorder of one thread.", .tp_getset = Local_attributes, .tp_new = Local_new);

/* Return what a weak reference refers to (a new reference), NULL where that is gone, or it is none. */
static PyObject *
referent(PyObject *ref)
{
    PyObject *found = NULL;
    if (!PyWeakref_CheckRef(ref)) {
        return NULL;
    }
#if PY_VERSION_HEX >= 0x030D0000
    if (PyWeakref_GetRef(ref, &found) < 0) {
        return NULL;
    }
    return found;
#else
    found = PyWeakref_GetObject(ref);
    return found == Py_None ? NULL : Py_XNewRef(found);
#endif
}

/* Return the pending segment of a thread (a new reference), NULL where there is none. */
static Segment *
pending(Thread *thread)
{
    PyObject *segment = thread == NULL ? NULL : referent(thread->segment);
    if (segment != NULL && !is_a(segment, &Segment_type)) {
        Py_CLEAR(segment);
    }
    return (Segment *)segment;
}

/* Count the entries of a segment that is freed, as Stats.ended in tape/statistics.py does. */
static void
Segment_finalize(PyObject *self)
{
    if (begin.segments == NULL) {
        return;
    }
    PyObject *type, *value, *trace, *state = ((Segment *)self)->state;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *id = PyLong_FromVoidPtr(self), *ref = id == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(begin.segments, id));
    if (ref != NULL && PyDict_DelItem(begin.segments, id) == 0 && state != NULL && is_a(state, &State_type) && ((State *)state)->depth != NULL) {
        ((Counts *)begin.counts)->ended += PyLong_AsLongLong(((State *)state)->depth);
    }
    Py_XDECREF(ref);
    Py_XDECREF(id);
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable(self);
    }
    PyErr_Restore(type, value, trace);
}

/* Return an item of a list by its number (borrowed); NULL where there is none. */
static PyObject *
picked(PyObject *list, PyObject *number)
{
    Py_ssize_t i = PyLong_AsSsize_t(number);
    return i >= 0 && i < PyList_GET_SIZE(list) ? PyList_GET_ITEM(list, i) : NULL;
}

/* Return a number that a module has (0 with an exception: it has none). */
static long long
number_in(PyObject *module, PyObject *name)
{
    PyObject *held = PyObject_GetAttr(module, name);
    long long number = held == NULL ? 0 : PyLong_AsLongLong(held);
    Py_XDECREF(held);
    return PyErr_Occurred() ? 0 : number;
}

/* -- results of a pending segment -------------------------------------------------------------------------------------------------------- */

#define SPARE 512       /* Variables, and cells, that are kept to be made again */
#define SPARE_ROOM 4096 /* results for which there is room in the row that is kept */

static struct {
    PyObject *variables[SPARE], *cells[SPARE];
    int count, n_cells;
    Result *row;
    Py_ssize_t room;
} spare;

/* Tell whether a value refers to nothing that could refer to it. */
static int
refers_to_nothing(PyObject *value)
{
    static PyTypeObject *array; /* one of `concrete` */
    PyTypeObject *type = Py_TYPE(value);
    if (type != array && type != &PyFloat_Type && PySet_Contains(told.concrete, (PyObject *)type) == 1) {
        array = type;
    }
    return type == array || type == &PyFloat_Type;
}

/* Spare the collector of garbage what is on no cycle: a loop that looks in each turn has ten cells a turn on its tape, and more, and every collection
   would go through all of them. */
static void
overlook(PyObject *object)
{
    if (object != NULL && PyObject_IS_GC(object) && PyObject_GC_IsTracked(object)) {
        PyObject_GC_UnTrack(object);
    }
}

/* Show it a cell only where its value may refer to something; it may have been empty before. */
static void
spare_collector(PyObject *cell)
{
    if (refers_to_nothing(PyList_GET_ITEM(cell, 0))) {
        PyObject_GC_UnTrack(cell);
    } else if (!PyObject_GC_IsTracked(cell)) {
        PyObject_GC_Track(cell);
    }
}

/* Tell whether a cell holds a number or an array. */
static int
holds_value(PyObject *cell)
{
    return PyList_CheckExact(cell) && PyList_GET_SIZE(cell) == 1 &&
           (!PyObject_IS_GC(PyList_GET_ITEM(cell, 0)) || refers_to_nothing(PyList_GET_ITEM(cell, 0)));
}

/* Spare it what a segment that has run keeps for sweeps: cells of its leaves and results, as long as all of them hold values, and lists to which nothing
   is added any more. */
static void
spare_kept(Segment *segment, PyObject *saved, PyObject *run)
{
    PyObject *slot, *cell;
    Py_ssize_t at = 0;
    int all = PyDict_CheckExact(saved);
    while (all && PyDict_Next(saved, &at, &slot, &cell)) {
        all = holds_value(cell);
    }
    if (all) { /* all that enters later is what a cell holds, too */
        overlook(saved);
        overlook(run);
    }
    all = PyList_CheckExact(segment->leaves);
    for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(segment->leaves); i++) {
        all = holds_value(PyList_GET_ITEM(segment->leaves, i));
    }
    if (all) {
        overlook(segment->leaves);
    }
    overlook(segment->borrowed);
    if (PyList_CheckExact(segment->leaf_places) && PyList_GET_SIZE(segment->leaf_places) == 0) {
        overlook(segment->leaf_places);
    }
}

/* Make a cell for a value to come, which the collector of garbage need not see. */
static PyObject *
empty_cell(void)
{
    if (spare.n_cells > 0) {
        return spare.cells[--spare.n_cells];
    }
    PyObject *cell = PyList_New(1);
    if (cell != NULL) {
        PyList_SET_ITEM(cell, 0, Py_NewRef(Py_None));
        PyObject_GC_UnTrack(cell);
    }
    return cell;
}

/* Make a cell that holds a value. */
static PyObject *
cell_of(PyObject *value)
{
    PyObject *cell = empty_cell();
    if (cell != NULL) {
        PyList_SET_ITEM(cell, 0, Py_NewRef(value));
        Py_DECREF(Py_None); /* which it held */
        spare_collector(cell);
    }
    return cell;
}

/* Keep a cell that nobody else refers to, to be made again; takes over the reference. */
static void
drop_cell(PyObject *cell)
{
    PyObject *value = PyList_GET_SIZE(cell) == 1 ? PyList_GET_ITEM(cell, 0) : NULL;
    if (Py_REFCNT(cell) != 1 || value == NULL || (value != Py_None && !PyFloat_CheckExact(value)) || spare.n_cells == SPARE) {
        Py_DECREF(cell);
        return;
    }
    PyObject_GC_UnTrack(cell); /* else the collection of garbage that lets go of the segment would clear it */
    PyList_SET_ITEM(cell, 0, Py_NewRef(Py_None));
    Py_DECREF(value); /* nothing of Python's runs */
    spare.cells[spare.n_cells++] = cell;
}

/* Let go of the leaves of a segment: of numbers, too, whose cells nobody holds. */
static void
drop_leaves(PyObject *leaves)
{
    for (Py_ssize_t i = 0; Py_REFCNT(leaves) == 1 && PyList_CheckExact(leaves) && i < PyList_GET_SIZE(leaves); i++) {
        PyObject *cell = PyList_GET_ITEM(leaves, i);
        if (PyList_CheckExact(cell) && PyList_GET_SIZE(cell) == 1 && PyFloat_CheckExact(PyList_GET_ITEM(cell, 0))) {
            PyList_SET_ITEM(leaves, i, NULL);
            drop_cell(cell);
        }
    }
    Py_DECREF(leaves);
}

/* Let go of a segment's results that are not in its dict of cells: most are values inside of a program, whose cells nobody holds and nobody has filled. */
static void
drop_recent(Segment *segment)
{
    Result *row = segment->recent;
    Py_ssize_t n = segment->n_recent, room = segment->room;
    segment->recent = NULL;
    segment->n_recent = segment->room = segment->most = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_DECREF(row[i].slot);
        drop_cell(row[i].cell);
    }
    if (room > spare.room && room <= SPARE_ROOM) {
        Result *before = spare.row;
        spare.row = row;
        spare.room = room;
        row = before;
    }
    PyMem_Free(row);
}

/* Have room for further results of a segment: 0, or -1 with an exception. */
static int
have_room(Segment *segment, Py_ssize_t further)
{
    Py_ssize_t wanted = segment->n_recent + further;
    if (wanted <= segment->room) {
        return 0;
    }
    if (segment->recent == NULL && wanted <= spare.room) {
        segment->recent = spare.row;
        segment->room = spare.room;
        spare.row = NULL;
        spare.room = 0;
        return 0;
    }
    Py_ssize_t room = 2 * wanted + 14;
    Result *row = PyMem_Realloc(segment->recent, room * sizeof *row);
    if (row == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    segment->recent = row;
    segment->room = room;
    return 0;
}

/* Add a result to a segment that has room for it. */
static inline void
add_result(Segment *segment, PyObject *slot, PyObject *cell)
{
    Py_ssize_t number = PyLong_AsSsize_t(slot);
    segment->most = number > segment->most ? number : segment->most;
    segment->recent[segment->n_recent++] = (Result){Py_NewRef(slot), Py_NewRef(cell)};
}

/* Return the cell of a result of a segment (borrowed), NULL where it has none; those are asked for in order, from `*next` on. */
static PyObject *
cell_at(Segment *segment, PyObject *slot, Py_ssize_t *next)
{
    for (Py_ssize_t i = *next; i < segment->n_recent; i++) {
        if (segment->recent[i].slot == slot) {
            *next = i + 1;
            return segment->recent[i].cell;
        }
    }
    Py_ssize_t number = PyLong_AsSsize_t(slot);
    for (Py_ssize_t i = 0; number <= segment->most && i < segment->n_recent; i++) {
        if (PyLong_AsSsize_t(segment->recent[i].slot) == number) {
            return segment->recent[i].cell;
        }
    }
    return PyDict_GET_SIZE(segment->cells) ? PyDict_GetItemWithError(segment->cells, slot) : NULL;
}

/* The same of one that is probably new. */
static PyObject *
cell_there(Segment *segment, PyObject *slot)
{
    Py_ssize_t end = segment->n_recent;
    return cell_at(segment, slot, &end);
}

static PyObject *
Segment_cells(PyObject *self, void *Py_UNUSED(closure))
{
    Segment *segment = (Segment *)self;
    if (segment->cells == NULL) {
        PyErr_SetString(PyExc_AttributeError, "cells");
        return NULL;
    }
    Py_ssize_t n = segment->n_recent, i = 0;
    while (i < n && PyDict_SetItem(segment->cells, segment->recent[i].slot, segment->recent[i].cell) == 0) {
        i++;
    }
    if (i < n) { /* memory ended; what is in both is the same */
        return NULL;
    }
    drop_recent(segment);
    return Py_NewRef(segment->cells);
}

static int
Segment_set_cells(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
    Segment *segment = (Segment *)self;
    if (value == NULL || !PyDict_CheckExact(value)) {
        PyErr_SetString(PyExc_TypeError, "the cells of a segment are in a dict");
        return -1;
    }
    PyObject *before = segment->cells;
    segment->cells = Py_NewRef(value);
    drop_recent(segment);
    Py_XDECREF(before);
    return 0;
}

static PyGetSetDef Segment_attributes[] = {{"cells", Segment_cells, Segment_set_cells, "the cells of results by slot", NULL}, {NULL}};

/* Have a segment hold nothing, as tape/graph/segment.py has it: 0, or -1 with an exception. */
static int
empty(Segment *segment)
{
    drop_recent(segment);
    for (PyObject **field = &segment->trace; field < &segment->weak; field++) {
        PyObject *value = field < &segment->open ? Py_NewRef(Py_None)
                          : field < &segment->cells ? Py_NewRef(Py_True)
                          : field < &segment->leaves ? PyDict_New()
                                                     : PyList_New(0);
        if (value == NULL) {
            return -1;
        }
        Py_XSETREF(*field, value);
    }
    return 0;
}

/* Tell whether a thread's segments are pending, not inside of a transformation of JAX, and nobody sees what is recorded. */
static int
unwatching(Thread *thread)
{
    PyObject *scope = thread->scope;
    return begin.segment != NULL && PyTuple_Check(scope) && PyTuple_GET_SIZE(scope) > begin.notes && PyTuple_GET_ITEM(scope, begin.eager) == Py_False &&
           PyTuple_GET_ITEM(scope, begin.observer) == Py_None && PyTuple_GET_ITEM(scope, begin.notes) == Py_None &&
           PyList_CheckExact(PyTuple_GET_ITEM(scope, begin.staged)) && PyList_GET_SIZE(PyTuple_GET_ITEM(scope, begin.staged)) == 0;
}

/* Make a pending segment that holds nothing but where it stands, as Segment in tape/graph/segment.py is made. */
static Segment *
new_segment(PyObject *epoch, PyObject *configuration, PyObject *state, PyObject *scalars)
{
    PyObject *held[] = {Py_NewRef(epoch), Py_NewRef(configuration), Py_NewRef(state), Py_NewRef(scalars)}, *ref = NULL, *id = NULL;
    Segment *segment = (Segment *)((PyTypeObject *)begin.segment)->tp_alloc((PyTypeObject *)begin.segment, 0);
    if (segment == NULL) {
        clear_fields(held, held + 4);
        return NULL;
    }
    segment->epoch = held[0];
    segment->configuration = held[1];
    segment->state = held[2];
    segment->scalars = held[3];
    segment->packing = Py_NewRef(Py_None);
    segment->released = Py_NewRef(begin.none);
    segment->generation = PyLong_FromLong(0);
    segment->lock = PyObject_CallNoArgs(begin.lock);
    segment->serial = PyIter_Next(begin.serials);
    if (segment->generation == NULL || segment->lock == NULL || segment->serial == NULL || empty(segment) < 0 ||
        (ref = PyWeakref_NewRef((PyObject *)segment, NULL)) == NULL || (id = PyLong_FromVoidPtr(segment)) == NULL ||
        PyDict_SetItem(begin.segments, id, ref) < 0) {
        Py_CLEAR(segment);
    } else {
        overlook(segment->lock);
        overlook(ref);
    }
    Py_XDECREF(ref);
    Py_XDECREF(id);
    return segment;
}

/* Begin a thread's segment as the one before began, as `begun` in tape/recording/entering.py does: NULL without an exception where that is not so,
   or somebody watches. */
static Segment *
begun_again(Thread *thread)
{
    PyObject *scope = thread->scope, *outset = thread->outset, *epoch = ((Changes *)told.changes)->epoch;
    if (!unwatching(thread) || !PyTuple_CheckExact(outset) || PyTuple_GET_ITEM(outset, 0) != epoch || PyTuple_GET_ITEM(scope, begin.packing) != Py_None) {
        return NULL;
    }
    PyObject *named = PyObject_CallNoArgs(told.axes_are_named), *state = NULL, *ref = NULL;
    PyObject *key = PyTuple_Pack(3, PyTuple_GET_ITEM(outset, 3), PyTuple_GET_ITEM(outset, 1), PyTuple_GET_ITEM(scope, 0));
    Segment *segment = NULL;
    Py_XDECREF(named);
    if (named == Py_False && key != NULL && thread->outset == outset && number_in(begin.trie, name_count) <= number_in(begin.trie, name_room) &&
        !PyErr_Occurred() && (state = PyDict_GetItemWithError(begin.roots, key)) != NULL && is_a(state, &State_type)) {
        segment = new_segment(epoch, PyTuple_GET_ITEM(outset, 2), state, PyTuple_GET_ITEM(outset, 4));
        ref = segment == NULL ? NULL : PyWeakref_NewRef((PyObject *)segment, NULL);
    }
    if (ref == NULL || thread->outset != outset || PyDict_GetItemWithError(begin.roots, key) != segment->state) {
        Py_CLEAR(segment); /* memory was got above: finalizers may have run */
    } else {
        Py_SETREF(thread->segment, Py_NewRef(ref));
    }
    Py_XDECREF(key);
    Py_XDECREF(ref);
    return segment;
}

/* Return where an Extra, or the node of a leaf, has a field. */
static inline PyObject **
of_extra(PyObject *extra, int field)
{
    return (PyObject **)((char *)extra + parts.in_extra[field]);
}

static inline PyObject **
of_node(PyObject *node, int field)
{
    return (PyObject **)((char *)node + parts.in_node[field]);
}

/* Return the Extra of a Variable (borrowed), all of whose fields are there; NULL where it has none. */
static inline PyObject *
extra_of(Handle *handle)
{
    PyObject *extra = handle->extra;
    if (extra == NULL || (PyObject *)Py_TYPE(extra) != parts.extra) {
        return NULL;
    }
    for (int i = 0; i < EXTRA_FIELDS; i++) {
        if (*of_extra(extra, i) == NULL) {
            return NULL;
        }
    }
    return extra;
}

/* Tell whether a leaf's node calls somebody with its gradient; -1 where it is no such node. */
static inline int
node_hooked(PyObject *node)
{
    PyObject *hooks = (PyObject *)Py_TYPE(node) == parts.node ? *of_node(node, HOOKS) : NULL;
    return hooks == NULL || !PyDict_CheckExact(hooks) ? -1 : PyDict_GET_SIZE(hooks) > 0;
}

/* Return the segment in which a thread may record, begun where there is none (a new reference); NULL where it is not done here. */
static Segment *
recording(Thread *thread, int *begins)
{
    Segment *segment = pending(thread);
    if (segment != NULL && segment->epoch != NULL && segment->epoch == ((Changes *)told.changes)->epoch) {
        return segment;
    }
    *begins = 1;
    Segment *again = thread == NULL || segment != NULL ? NULL : begun_again(thread);
    if (again != NULL || PyErr_Occurred()) {
        return again;
    }
    Py_XDECREF(segment);
    PyObject *begun = thread == NULL ? NULL : PyObject_CallNoArgs(told.begun);
    if (begun != NULL && !is_a(begun, &Segment_type)) {
        Py_CLEAR(begun);
    }
    return (Segment *)begun;
}

/* Return the segment in which a step that is traced records, and what `begun` in tape/recording/staging.py says of it (new references); NULL where none
   is traced. */
static Segment *
staged(Thread *thread, PyObject **said)
{
    PyObject *scope = thread == NULL ? NULL : thread->scope;
    if (scope == NULL || told.staged == NULL || begin.segment == NULL || !PyTuple_Check(scope) || PyTuple_GET_SIZE(scope) <= begin.notes ||
        PyTuple_GET_ITEM(scope, told.trace) == told.nobody || PyTuple_GET_ITEM(scope, begin.eager) != Py_True) {
        return NULL;
    }
    PyObject *given = PyObject_CallNoArgs(told.staged);
    Segment *segment = NULL;
    if (given != NULL && PyTuple_CheckExact(given) && PyTuple_GET_SIZE(given) == 3 && is_a(PyTuple_GET_ITEM(given, 0), &Segment_type) &&
        PyDict_CheckExact(PyTuple_GET_ITEM(given, 1)) && PyDict_CheckExact(PyTuple_GET_ITEM(given, 2))) {
        segment = (Segment *)Py_NewRef(PyTuple_GET_ITEM(given, 0));
        *said = Py_NewRef(given);
    }
    Py_XDECREF(given);
    return segment;
}

/* Tell whether a thread's scope has NOBODY at a position. */
static int
unobserved(Thread *thread, Py_ssize_t at)
{
    return PyTuple_Check(thread->scope) && PyTuple_GET_SIZE(thread->scope) > at && PyTuple_GET_ITEM(thread->scope, at) == told.nobody;
}

/* -- one entry ------------------------------------------------------------------------------------------------------------------------- */

#define MOST 16   /* inputs on the fast path */
#define LEAVES 48 /* that enter together */

typedef struct { /* a leaf that enters with the entry; references of its own */
    PyObject *cell, *id, *slot, *node, *line;
    PyObject *fresh; /* the state that follows, where it was made for this walk */
} Entering;

typedef struct { /* where an entry stands before it is committed */
    Thread *thread;
    Segment *segment;
    State *state; /* the one after what has entered so far; a reference of its own */
    PyObject *generation; /* that of the segment then, where it is another one; a reference of its own */
    PyObject *staged; /* in a step that is traced: its segment, the Variables that it wrote to, by id, and by that of a cell from outside its own;
                         NULL otherwise; a reference of its own */
    int count, makes; /* whether states are made that were not met */
    Entering entering[LEAVES];
} Walk;

/* Return a Variable's structure; NULL for what is none, and for what stands for another one (its fields are empty). */
static inline Handle *
as_handle(PyObject *value)
{
    if ((PyObject *)Py_TYPE(value) != told.variable && !is_a(value, &Handle_type)) {
        return NULL;
    }
    Handle *handle = (Handle *)value;
    if (handle->cell == NULL || handle->place == NULL || handle->segment == NULL || !PyList_CheckExact(handle->cell) ||
        PyList_GET_SIZE(handle->cell) != 1 || !is_a(handle->place, &Place_type) || ((Place *)handle->place)->slot == NULL) {
        return NULL;
    }
    return handle;
}

static PyObject *formed(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
static PyObject **own(PyObject *state, int field);
static int has(PyObject *x, PyObject *name, PyObject *wanted);

/* Tell whether a state is that of a tape of its own, which has no length and is not met again (`alone` in tape/graph/trie.py). */
static inline int
is_alone(PyObject *state)
{
    PyObject *length = *own(state, LENGTH);
    return length != NULL && (PyObject *)Py_TYPE(length) == told.endless;
}

/* Tell whether there is room to note that one more state was met. */
static inline int
may_meet(PyObject *state)
{
    return told.met != NULL && (PyDict_GET_SIZE(told.met) < told.room || is_alone(state));
}

/* Put a state that was made on the trie if it was met before; return what is there. */
static PyObject *
on_trie(PyObject *state, PyObject *key, PyObject *child)
{
    if (child != NULL && *own(child, KNOWN) == Py_True) {
        PyObject *given[] = {state, key, child}, *there = PyObject_Vectorcall(told.enter, given, 3, NULL);
        Py_SETREF(child, there);
    }
    return child;
}

/* Make the state that follows when a leaf of a kind enters. */
static PyObject *
new_leaf(PyObject *state, PyObject *kind)
{
    if (!may_meet(state) || !is_a(kind, &Kind_type)) {
        return PyObject_CallMethodOneArg(state, name_leaf, kind);
    }
    PyObject *now = PyObject_GetAttr(told.clock, name_now), *kinds = PyTuple_Pack(1, kind), *none = PyTuple_New(0), *child = NULL;
    PyObject *form = kinds == NULL ? NULL : PyTuple_Pack(3, Py_None, kinds, ((Kind *)kind)->unrecorded == Py_False ? Py_False : Py_True);
    if (now != NULL && none != NULL && form != NULL) {
        PyObject *args[] = {state, Py_None, form, none, Py_None, kind, told.met, now};
        child = on_trie(state, kind, formed(NULL, args, 8));
    }
    Py_XDECREF(now);
    Py_XDECREF(kinds);
    Py_XDECREF(none);
    Py_XDECREF(form);
    return child;
}

/* Advance a walk by a leaf of a kind; takes over `cell`, and the others where they are given. */
static int
enter_leaf(Walk *walk, PyObject *kind, PyObject *cell, PyObject *id, PyObject *node, PyObject *line)
{
    State *state = walk->state;
    PyObject *child = Py_XNewRef(state->latest == kind ? state->child : PyDict_GetItemWithError(state->next, kind)), *slots, *fresh = NULL;
    if (child != NULL && state->latest == Py_None && is_a(child, &State_type)) { /* that of an op stays, for a look-up of it makes a tuple */
        PyObject *before = state->child;
        state->latest = Py_NewRef(kind);
        state->child = Py_NewRef(child);
        Py_DECREF(Py_None);
        Py_XDECREF(before);
    }
    if (child == NULL && walk->makes && !PyErr_Occurred() && (PyObject *)Py_TYPE(state) == told.state) {
        child = new_leaf((PyObject *)state, kind);
        fresh = Py_XNewRef(child);
    }
    if (cell == NULL || child == NULL || walk->count == LEAVES || !is_a(child, &State_type) || ((State *)child)->next == NULL ||
        (slots = ((State *)child)->slots) == NULL || !PyTuple_CheckExact(slots) || PyTuple_GET_SIZE(slots) != 1) {
        Py_XDECREF(cell);
        Py_XDECREF(id);
        Py_XDECREF(node);
        Py_XDECREF(line);
        Py_XDECREF(child);
        Py_XDECREF(fresh);
        return 0;
    }
    Py_DECREF(state);
    walk->state = (State *)child;
    walk->entering[walk->count++] = (Entering){cell, id, Py_NewRef(PyTuple_GET_ITEM(slots, 0)), node, line, fresh};
    return 1;
}

static void
begin_walk(Walk *walk)
{
    walk->thread = this_thread();
    walk->segment = NULL;
    walk->state = NULL;
    walk->generation = walk->staged = NULL;
    walk->count = walk->makes = 0;
}

static void
end_walk(Walk *walk)
{
    for (int i = 0; i < walk->count; i++) {
        clear_fields(&walk->entering[i].cell, &walk->entering[i].fresh + 1);
    }
    Py_CLEAR(walk->state);
    Py_CLEAR(walk->generation);
    Py_CLEAR(walk->staged);
}

/* Tell whether a structure has no slots that were cut from their past. */
static int
uncut(PyObject *state)
{
    PyObject *cut = PyObject_GetAttr(state, name_cut);
    int none = cut != NULL && PyFrozenSet_CheckExact(cut) && PySet_GET_SIZE(cut) == 0;
    Py_XDECREF(cut);
    return none;
}

/* Return what a segment keeps for sweeps, a dictionary by slot (borrowed); NULL without an error where it has not run. */
static PyObject *
saved_of(Segment *segment)
{
    PyObject *run = segment->run;
    PyObject *saved = run != NULL && PyTuple_Check(run) && PyTuple_GET_SIZE(run) ? PyTuple_GET_ITEM(run, 0) : NULL;
    return saved != NULL && PyDict_CheckExact(saved) ? saved : NULL;
}

/* Return where sweeps go on from a value that another segment gave, which lies behind this one then; NULL where that is not done here: it was
   cut, its segment is the newer one, or so many lie behind each other that somebody is to look (tape/programs/growth.py). */
static PyObject *
given_by(Walk *walk, PyObject *origin, PyObject *slot)
{
    Segment *before = (Segment *)origin, *segment = walk->segment;
    if (!is_a(origin, &Segment_type) || saved_of(before) == NULL || before->trace != Py_None || before->generation == NULL || before->serial == NULL ||
        segment->generation == NULL || segment->serial == NULL || !uncut(before->state)) {
        return NULL;
    }
    PyObject *present = walk->generation == NULL ? segment->generation : walk->generation;
    long long behind = PyLong_AsLongLong(before->generation), here = PyLong_AsLongLong(present);
    long long serial = PyLong_AsLongLong(before->serial), own = PyLong_AsLongLong(segment->serial);
    long long then = behind >= here ? behind + 1 : here;
    PyObject *limit = PyErr_Occurred() ? NULL : PyObject_GetAttr(told.growth, name_limit);
    long long turns = limit == NULL ? 0 : PyLong_AsLongLong(limit);
    Py_XDECREF(limit);
    if (PyErr_Occurred() || turns < 1 || serial > own || (behind + 1 == then && then % turns == 0 && ((then / turns) & (then / turns - 1)) == 0)) {
        return NULL;
    }
    if (then != here) {
        PyObject *generation = PyLong_FromLongLong(then);
        if (generation == NULL) {
            return NULL;
        }
        Py_XSETREF(walk->generation, generation);
    }
    return PyTuple_Pack(2, origin, slot);
}

/* Return the line where an unrecorded value was made that `origin` (or nobody) gave, as made_at in tape/graph/segment.py has it. */
static PyObject *
line_of(Place *place, PyObject *origin)
{
    PyObject *made = PyObject_GetAttr((PyObject *)place, name_made);
    if (made == NULL || !PyLong_CheckExact(made)) {
        return made;
    }
    PyObject *line = Py_None;
    if (origin != Py_None) {
        PyObject *lines = is_a(origin, &Segment_type) ? ((Segment *)origin)->leaf_lines : NULL;
        line = lines != NULL && PyDict_CheckExact(lines) ? PyDict_GetItemWithError(lines, made) : NULL;
        line = line == NULL && !PyErr_Occurred() ? Py_None : line;
    }
    Py_DECREF(made);
    return Py_XNewRef(line);
}

/* Forget which leaves of a segment were used last. */
static void
forget_leaves(Segment *segment)
{
    for (int i = 0; i < NEAR; i++) {
        segment->near[i].cell = NULL;
        Py_CLEAR(segment->near[i].slot);
    }
}

static inline int
nearby(PyObject *cell)
{
    return (int)((uintptr_t)cell / sizeof(PyListObject) % NEAR);
}

/* Return the slot of a leaf that entered lately (borrowed); NULL where it is none.  Weights of a loop are asked for in every turn. */
static inline PyObject *
slot_nearby(Segment *segment, PyObject *cell)
{
    int i = nearby(cell);
    Py_ssize_t at = segment->near[i].at;
    return segment->near[i].cell == cell && segment->leaves != NULL && PyList_CheckExact(segment->leaves) && at < PyList_GET_SIZE(segment->leaves) &&
                   PyList_GET_ITEM(segment->leaves, at) == cell
               ? segment->near[i].slot : NULL;
}

/* Return the slot that a cell has in the segment of a walk (a new reference), NULL where it has none; `id` is its number. */
static PyObject *
slot_there(Walk *walk, PyObject *cell, PyObject *id)
{
    PyObject *slot = PyDict_GetItemWithError(walk->segment->entered, id);
    for (int i = 0; slot == NULL && i < walk->count; i++) {
        slot = walk->entering[i].cell == cell ? walk->entering[i].slot : NULL;
    }
    return Py_XNewRef(slot);
}

/* Return the slot (a new reference) of the value in a cell, which enters as a leaf where it has none.  `origin` gave it at `at`, or is None;
   then its gradient goes to `node`, or to that of a Variable that is a leaf. */
static PyObject *
slot_of_cell(Walk *walk, PyObject *cell, Place *place, PyObject *origin, PyObject *at, PyObject *node, Handle *leaf)
{
    PyObject *slot = slot_nearby(walk->segment, cell);
    if (slot != NULL) {
        return Py_NewRef(slot);
    }
    PyObject *id = PyLong_FromVoidPtr(cell), *line = NULL;
    slot = id == NULL ? NULL : slot_there(walk, cell, id);
    if (slot != NULL || id == NULL) {
        Py_XDECREF(id);
        return slot;
    }
    Kind *kind = (Kind *)place->kind;
    if (PySet_Contains(told.concrete, (PyObject *)Py_TYPE(PyList_GET_ITEM(cell, 0))) != 1 || kind == NULL || !is_a(kind, &Kind_type)) {
        Py_DECREF(id);
        return NULL;
    }
    Py_INCREF(cell); /* what Python does below may rebind the Variable */
    Py_INCREF(kind);
    int ready = 1;
    if (kind->requires_grad != Py_False) { /* a gradient will come: to the leaf's node, or to another segment */
        if (!unobserved(walk->thread, told.forward)) {
            node = NULL;
        } else if (node != NULL) {
            Py_INCREF(node);
        } else if (origin != Py_None) {
            node = given_by(walk, origin, at);
        } else if (leaf != NULL && (leaf->extra == Py_None || extra_of(leaf) != NULL)) {
            node = Py_NewRef(leaf->extra == Py_None ? Py_None : *of_extra(leaf->extra, NODE));
            if (node == Py_None) {
                Py_DECREF(node);
                node = PyObject_CallOneArg(told.node_of, (PyObject *)leaf);
            }
        }
        ready = node != NULL;
    } else {
        node = NULL;
        if (kind->unrecorded != Py_False) {
            line = unobserved(walk->thread, told.forward) ? line_of(place, origin) : NULL;
            ready = line != NULL;
        }
    }
    if (!ready) {
        Py_DECREF(cell);
        Py_DECREF(kind);
        Py_DECREF(id);
        return NULL;
    }
    int entered = enter_leaf(walk, (PyObject *)kind, cell, id, node, line);
    Py_DECREF(kind);
    return entered ? Py_NewRef(walk->entering[walk->count - 1].slot) : NULL;
}

/* Return the slot of a Variable in a step that is traced (a new reference): of a result that is pending there, or of a value from outside by its own
   cell for it, once that has entered.  Of Variables that it wrote to it may know others. */
static PyObject *
slot_inside(Walk *walk, Handle *handle)
{
    PyObject *written = PyTuple_GET_ITEM(walk->staged, 1), *cells = PyTuple_GET_ITEM(walk->staged, 2), *cell = NULL, *slot = NULL;
    if (PyDict_GET_SIZE(written) > 0) {
        PyObject *id = PyLong_FromVoidPtr(handle);
        int there = id == NULL ? -1 : PyDict_Contains(written, id);
        Py_XDECREF(id);
        if (there != 0) {
            return NULL;
        }
    }
    if (handle->segment == (PyObject *)walk->segment) {
        return Py_NewRef(((Place *)handle->place)->slot);
    }
    if (unobserved(walk->thread, told.forward)) {
        PyObject *id = PyLong_FromVoidPtr(handle->cell);
        cell = id == NULL ? NULL : PyDict_GetItemWithError(cells, id);
        Py_XDECREF(id);
    }
    if (cell != NULL) {
        PyObject *id = PyLong_FromVoidPtr(cell);
        slot = id == NULL ? NULL : PyDict_GetItemWithError(walk->segment->entered, id);
        Py_XDECREF(id);
    }
    return Py_XNewRef(slot);
}

/* Return the slot of a Variable (a new reference), which enters as a leaf where it has none. */
static PyObject *
slot_of(Walk *walk, Handle *handle)
{
    Place *place = (Place *)handle->place;
    if (walk->staged != NULL) {
        return slot_inside(walk, handle);
    }
    if (handle->segment == (PyObject *)walk->segment) {
        return Py_NewRef(place->slot);
    }
    PyObject *cell = Py_NewRef(handle->cell), *origin = Py_NewRef(handle->segment); /* held: Python may rebind the Variable */
    Py_INCREF(place);
    PyObject *slot = slot_of_cell(walk, cell, place, origin, place->slot, NULL, handle);
    Py_DECREF(cell);
    Py_DECREF(origin);
    Py_DECREF(place);
    return slot;
}

static inline int
is_generic(PyObject *value)
{
    return PyObject_TypeCheck(value, (PyTypeObject *)told.generic);
}

/* Return the kind of a number of Python or NumPy (borrowed) where it was met before; NULL otherwise, for integers that may not fit, and for
   what a caller may have made of a value, as constants.scalar says. */
static PyObject *
kind_of_number(Walk *walk, PyObject *value)
{
    static PyObject *kinds, *of_floats; /* most numbers are these; a kind that is there stays */
    if (PyFloat_CheckExact(value)) {
        PyObject *scalars = walk->segment->scalars, *kind = kinds == scalars ? of_floats : PyDict_GetItemWithError(scalars, (PyObject *)&PyFloat_Type);
        if (kind != NULL && kinds != scalars) {
            Py_XSETREF(kinds, Py_NewRef(scalars));
            Py_XSETREF(of_floats, Py_NewRef(kind));
        }
        return kind;
    }
    if (is_generic(value) && !unobserved(walk->thread, told.caller)) {
        return NULL;
    }
    PyObject *kind = PyDict_GetItemWithError(walk->segment->scalars, (PyObject *)Py_TYPE(value));
    if (kind != NULL && PyLong_Check(value) && !PyBool_Check(value)) {
        int overflow = 0;
        long long number = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : 0;
        if (!PyLong_CheckExact(value) || overflow || number < -2147483648LL || number >= 2147483648LL) {
            return NULL;
        }
    }
    return kind;
}

/* Tell whether two arrays of NumPy have the same dtype, shape and bytes, and lie in one piece. */
static int
same_array(PyObject *one, PyObject *other)
{
    PyObject *arrays[] = {one, other};
    Py_buffer views[2], *a = &views[0], *b = &views[1];
    int n = 0, same = 0;
    while (n < 2 && PyObject_GetBuffer(arrays[n], &views[n], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0) {
        n++;
    }
    PyErr_Clear(); /* it does not lie in one piece, or its dtype has no buffer */
    if (n == 2 && a->ndim == b->ndim && a->len == b->len && strcmp(a->format, b->format) == 0) {
        same = (a->ndim == 0 || memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape) == 0) && memcmp(a->buf, b->buf, a->len) == 0;
    }
    while (n > 0) {
        PyBuffer_Release(&views[--n]);
    }
    return same;
}

/* Note what is copied of a NumPy array, as `copied` in tape/graph/constants.py does where the dtype stays: the oldest eighth goes when there are many. */
static int
note_copy(PyObject *value, PyObject *id, PyObject *made, PyObject *x64)
{
    PyObject *ref = PyWeakref_NewRef(value, NULL), *noted = ref == NULL ? NULL : PyTuple_Pack(3, ref, made, x64), *old, *content;
    int done = noted == NULL ? -1 : PyDict_Contains(told.copies, id);
    if (done == 1) { /* what is put in again is the newest */
        done = PyDict_DelItem(told.copies, id);
    }
    if (done == 0) {
        done = PyDict_SetItem(told.copies, id, noted);
    }
    Py_ssize_t next = 0;
    for (Py_ssize_t left = done == 0 && PyDict_GET_SIZE(told.copies) > told.most ? told.most / 8 : 0; left > 0 && done == 0; left--, next = 0) {
        if (PyDict_Next(told.copies, &next, &old, &content)) {
            Py_INCREF(old);
            done = PyDict_DelItem(told.copies, old);
            Py_DECREF(old);
        }
    }
    Py_XDECREF(ref);
    Py_XDECREF(noted);
    return done;
}

/* Return (cell, kind) with a copy of a NumPy array of a known kind that nobody may write to; NULL without an exception where it is not known. */
static PyObject *
copied_now(PyObject *value, PyObject *id, PyObject *x64)
{
    PyObject *dtype = PyObject_GetAttr(value, name_dtype), *shape = dtype == NULL ? NULL : PyObject_GetAttr(value, name_shape), *made = NULL;
    PyObject *key = shape == NULL ? NULL : PyTuple_Pack(3, dtype, shape, x64), *kind = key == NULL ? NULL : PyDict_GetItemWithError(told.kinds_of_copies, key);
    if (kind != NULL && is_a(kind, &Kind_type)) {
        Py_INCREF(kind);
        PyObject *own = PyObject_GetAttr(((Kind *)kind)->aval, name_dtype), *cell = own == NULL ? NULL : PyList_New(1);
        PyObject *asked[] = {NULL, value, own, name_in_order};
        PyObject *copy = cell == NULL ? NULL : PyObject_VectorcallMethod(name_astype, asked + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        PyObject *sealed = NULL;
        if (copy != NULL) {
            asked[1] = copy;
            asked[2] = Py_False;
            sealed = PyObject_VectorcallMethod(name_setflags, asked + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
            PyList_SET_ITEM(cell, 0, copy);
            spare_collector(cell);
        }
        made = sealed == NULL ? NULL : PyTuple_Pack(2, cell, kind);
        if (made != NULL && own == dtype && note_copy(value, id, made, x64) < 0) {
            Py_CLEAR(made);
        }
        Py_XDECREF(sealed);
        Py_XDECREF(cell);
        Py_XDECREF(own);
        Py_DECREF(kind);
    }
    Py_XDECREF(key);
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    return made;
}

/* Return (cell, kind) of a NumPy array, as `copied` in tape/graph/constants.py does: those with a copy that was made before, where it is what it was;
   NULL without an exception where that is to do it. */
static PyObject *
copied_here(Walk *walk, PyObject *value)
{
    PyObject *scope = walk->thread->scope, *traced = NULL, *taken = NULL, *x64 = NULL, *id = NULL;
    if (begin.segment == NULL || runs.in_trace == NULL || !unobserved(walk->thread, told.caller) || !unobserved(walk->thread, told.forward) ||
        !unobserved(walk->thread, told.trace) || PyTuple_GET_ITEM(scope, begin.eager) != Py_False) {
        return NULL;
    }
    if ((traced = PyObject_CallNoArgs(runs.in_trace)) == Py_False && (x64 = PyObject_GetAttr(told.x64, name_value)) != NULL &&
        (id = PyLong_FromVoidPtr(value)) != NULL) {
        PyObject *known = Py_XNewRef(PyDict_GetItemWithError(told.copies, id));
        if (known != NULL && PyTuple_CheckExact(known) && PyTuple_GET_SIZE(known) == 3 && x64 == PyTuple_GET_ITEM(known, 2)) {
            PyObject *array = referent(PyTuple_GET_ITEM(known, 0)), *at = PyTuple_GET_ITEM(known, 1);
            if (array == value && PyTuple_CheckExact(at) && PyTuple_GET_SIZE(at) == 2 && PyList_CheckExact(PyTuple_GET_ITEM(at, 0)) &&
                PyList_GET_SIZE(PyTuple_GET_ITEM(at, 0)) == 1 && same_array(value, PyList_GET_ITEM(PyTuple_GET_ITEM(at, 0), 0))) {
                taken = Py_NewRef(at);
            }
            Py_XDECREF(array);
        }
        Py_XDECREF(known);
        if (taken == NULL && !PyErr_Occurred()) {
            taken = copied_now(value, id, x64);
        }
    }
    Py_XDECREF(traced);
    Py_XDECREF(x64);
    Py_XDECREF(id);
    return taken;
}

/* Return the slot (a new reference) of a NumPy array by the cell with its copy, which other ops may have brought here before. */
static PyObject *
slot_of_copy(Walk *walk, PyObject *value)
{
    PyObject *taken = copied_here(walk, value), *slot = NULL, *id = NULL;
    if (taken == NULL && !PyErr_Occurred()) {
        taken = PyObject_CallOneArg(told.copied, value);
    }
    if (taken != NULL && PyTuple_Check(taken) && PyTuple_GET_SIZE(taken) == 2 && PyList_CheckExact(PyTuple_GET_ITEM(taken, 0))) {
        PyObject *cell = PyTuple_GET_ITEM(taken, 0);
        slot = Py_XNewRef(slot_nearby(walk->segment, cell));
        if (slot == NULL && (id = PyLong_FromVoidPtr(cell)) != NULL && (slot = slot_there(walk, cell, id)) == NULL && !PyErr_Occurred() &&
            enter_leaf(walk, PyTuple_GET_ITEM(taken, 1), Py_NewRef(cell), Py_NewRef(id), NULL, NULL)) {
            slot = Py_NewRef(walk->entering[walk->count - 1].slot);
        }
    }
    Py_XDECREF(id);
    Py_XDECREF(taken);
    return slot;
}

/* Return the slot (a new reference) of what is no Variable: a number, or an array (one of NumPy: a copy) of a shape and dtype met before. */
static PyObject *
slot_of_value(Walk *walk, PyObject *value)
{
    if ((PyObject *)Py_TYPE(value) == told.numpy && walk->staged == NULL) {
        return slot_of_copy(walk, value);
    }
    PyObject *kind = kind_of_number(walk, value);
    if (kind == NULL && walk->staged == NULL && PySet_Contains(told.arrays, (PyObject *)Py_TYPE(value)) == 1) {
        PyObject *aval = unobserved(walk->thread, told.forward) && unobserved(walk->thread, told.caller) ? PyObject_GetAttr(value, name_aval) : NULL;
        PyObject *id = aval == NULL ? NULL : PyLong_FromVoidPtr(aval);
        PyObject *known = id == NULL ? NULL : PyDict_GetItemWithError(told.kinds, id);
        kind = known != NULL && PyTuple_Check(known) && PyTuple_GET_SIZE(known) == 2 ? PyTuple_GET_ITEM(known, 1) : NULL;
        Py_XDECREF(id);
        Py_XDECREF(aval);
    }
    Py_XINCREF(kind);
    PyObject *cell = kind == NULL ? NULL : cell_of(value);
    int entered = cell != NULL && enter_leaf(walk, kind, cell, NULL, NULL, NULL);
    Py_XDECREF(kind);
    return entered ? Py_NewRef(walk->entering[walk->count - 1].slot) : NULL;
}

static void Variable_dealloc(PyObject *self);

static inline void
free_variable(PyObject *self, PyTypeObject *type)
{
    WEAKLY(Handle);
    Handle_clear(self);
    if ((PyObject *)type == told.variable && type->tp_dealloc == Variable_dealloc && spare.count < SPARE) {
        spare.variables[spare.count++] = self;
    } else {
        type->tp_free(self);
    }
    Py_DECREF(type);
}

/* Free a Variable, for the class of Variables and those that users derive from it, as Python would: an op makes one, and mostly frees one, and what
   Python does for any class at both costs more than the recorder does for the entry. */
static void
Variable_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Handle *handle = (Handle *)self;
    if (handle->extra == Py_None && handle->segment != NULL && Py_REFCNT(handle->segment) > 1 && handle->cell != NULL && Py_REFCNT(handle->cell) > 1 &&
        handle->place != NULL && Py_REFCNT(handle->place) > 1) {
        free_variable(self, type); /* what it refers to stays */
        return;
    }
    Py_TRASHCAN_BEGIN(self, Variable_dealloc) /* a tape is as deep as it is long */
    free_variable(self, type);
    Py_TRASHCAN_END
}

/* Make a Variable; takes over `cell`. */
static PyObject *
new_handle(PyObject *segment, PyObject *place, PyObject *cell)
{
    PyTypeObject *type = (PyTypeObject *)told.variable;
    Handle *made;
    if (cell != NULL && spare.count > 0) {
        made = (Handle *)PyObject_Init(spare.variables[--spare.count], type); /* its fields are empty */
        PyObject_GC_Track((PyObject *)made);
    } else {
        made = cell == NULL ? NULL : (Handle *)type->tp_alloc(type, 0);
    }
    if (made == NULL) {
        Py_XDECREF(cell);
        return NULL;
    }
    made->cell = cell;
    made->segment = Py_NewRef(segment);
    made->place = Py_NewRef(place);
    made->extra = Py_NewRef(Py_None);
    return (PyObject *)made;
}

/* Take out of a segment again what a commit had stored when memory ended. */
static int
undo(Walk *walk, Py_ssize_t leaves)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    Segment *segment = walk->segment;
    PyList_SetSlice(segment->leaves, leaves, PyList_GET_SIZE(segment->leaves), NULL);
    forget_leaves(segment);
    for (int i = 0; i < walk->count; i++) {
        Entering *e = &walk->entering[i];
        if ((e->id != NULL && PyDict_DelItem(segment->entered, e->id) < 0) || (e->node != NULL && PyDict_DelItem(segment->origins, e->slot) < 0) ||
            (e->line != NULL && PyDict_DelItem(segment->leaf_lines, e->slot) < 0)) {
            PyErr_Clear();
        }
    }
    PyErr_Restore(type, value, trace);
    return -1;
}

/* Store an entry: 1 if that is done, 0 if the segment is no longer where the walk began, -1 if memory ended. */
static int
commit(Walk *walk, State *start, State *child, PyObject *const *made, Py_ssize_t results)
{
    Segment *segment = walk->segment;
    if (segment->epoch == NULL || segment->epoch != ((Changes *)told.changes)->epoch || segment->state != (PyObject *)start) {
        return 0;
    }
    Py_ssize_t leaves = PyList_GET_SIZE(segment->leaves);
    if (have_room(segment, results) < 0) {
        return -1;
    }
    for (int i = 0; i < walk->count; i++) {
        Entering *e = &walk->entering[i];
        if (PyList_Append(segment->leaves, e->cell) < 0 || (e->id != NULL && PyDict_SetItem(segment->entered, e->id, e->slot) < 0) ||
            (e->node != NULL && PyDict_SetItem(segment->origins, e->slot, e->node) < 0) ||
            (e->line != NULL && PyDict_SetItem(segment->leaf_lines, e->slot, e->line) < 0)) {
            return undo(walk, leaves);
        }
    }
    for (Py_ssize_t i = 0; i < results; i++) {
        add_result(segment, ((Place *)((Handle *)made[i])->place)->slot, ((Handle *)made[i])->cell);
    }
    for (int i = 0; i < walk->count; i++) {
        Entering *e = &walk->entering[i];
        if (e->id != NULL) {
            int near = nearby(e->cell);
            segment->near[near].cell = e->cell;
            segment->near[near].at = leaves + i;
            Py_XSETREF(segment->near[near].slot, Py_NewRef(e->slot)); /* a number: nothing of Python's runs */
        }
    }
    if (walk->generation != NULL) {
        PyObject *before = segment->generation;
        segment->generation = Py_NewRef(walk->generation);
        Py_DECREF(before); /* a number: nothing of Python's runs */
    }
    segment->state = Py_NewRef((PyObject *)child);
    Py_DECREF(start); /* its child refers to it: nothing is freed */
    return 1;
}

/* Make the Variables of an entry's results and commit it; takes over `child`. */
static PyObject *
hand_out(Walk *walk, State *start, State *child)
{
    PyObject *made[MOST], *result = NULL, *segment = (PyObject *)walk->segment;
    Py_ssize_t results = 0, wanted = 1;
    PyObject *places = NULL;
    PyTypeObject *container = NULL;
    made[0] = NULL;
    if (child->quick == Py_True) {
        if (child->place != NULL && is_a(child->place, &Place_type)) {
            made[0] = new_handle(segment, child->place, empty_cell());
            results = made[0] != NULL;
        }
    } else if (child->several != NULL && PyTuple_CheckExact(child->several)) {
        container = (PyTypeObject *)PyTuple_GET_ITEM(child->several, 0);
        places = PyTuple_GET_ITEM(child->several, 1);
        wanted = PyTuple_GET_SIZE(places);
        result = wanted > MOST ? NULL : container == &PyList_Type ? PyList_New(wanted) : PyTuple_New(wanted);
        for (; result != NULL && results < wanted; results++) {
            made[results] = new_handle(segment, PyTuple_GET_ITEM(places, results), empty_cell());
            if (made[results] == NULL) {
                break;
            }
            if (container == &PyList_Type) {
                PyList_SET_ITEM(result, results, made[results]);
            } else {
                PyTuple_SET_ITEM(result, results, made[results]);
            }
        }
    }
    if (results == wanted && commit(walk, start, child, made, results) == 1) {
        result = result == NULL ? made[0] : result;
    } else if (container == NULL) {
        Py_XDECREF(made[0]);
    } else {
        Py_CLEAR(result);
    }
    Py_DECREF(child);
    return result;
}

/* Return the child of a state by (op, slots) (a new reference): the one found last, where all of them are the same objects, or by a look-up. */
static PyObject *
found(State *state, PyObject *op, PyObject *const *slots, Py_ssize_t n)
{
    PyObject *key = state->latest; /* or the kind of a leaf */
    if (key != NULL && PyTuple_CheckExact(key) && state->child != NULL && PyTuple_GET_SIZE(key) == n + 1 && PyTuple_GET_ITEM(key, 0) == op) {
        Py_ssize_t same = 0;
        while (same < n && PyTuple_GET_ITEM(key, same + 1) == slots[same]) {
            same++;
        }
        if (same == n) {
            return Py_NewRef(state->child);
        }
    }
    if ((key = PyTuple_New(n + 1)) == NULL) {
        return NULL;
    }
    PyTuple_SET_ITEM(key, 0, Py_NewRef(op));
    for (Py_ssize_t i = 0; i < n; i++) {
        PyTuple_SET_ITEM(key, i + 1, Py_NewRef(slots[i]));
    }
    PyObject *child = Py_XNewRef(PyDict_GetItemWithError(state->next, key));
    if (child != NULL && is_a(child, &State_type)) {
        PyObject *before[] = {state->latest, state->child};
        state->latest = Py_NewRef(key);
        state->child = Py_NewRef(child);
        Py_XDECREF(before[0]);
        Py_XDECREF(before[1]);
    } else {
        Py_CLEAR(child);
    }
    Py_DECREF(key);
    return child;
}

static PyObject *line_outside(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* Return by what an op knows what it comes to on slots of a state, as following in tape/recording/entering.py has it. */
static PyObject *
about(PyObject *state, PyObject *configuration, PyObject *const *slots, Py_ssize_t n)
{
    PyObject *table = *own(state, TABLE), *kinds = PyTuple_New(n), *made = NULL;
    int done = kinds != NULL && table != NULL && PyList_CheckExact(table);
    for (Py_ssize_t i = 0; done && i < n; i++) {
        Py_ssize_t slot = PyLong_AsSsize_t(slots[i]);
        PyObject *place = slot < 0 || slot >= PyList_GET_SIZE(table) ? NULL : PyList_GET_ITEM(table, slot);
        done = place != NULL && is_a(place, &Place_type);
        if (done) {
            PyTuple_SET_ITEM(kinds, i, Py_NewRef(((Place *)place)->kind));
        }
    }
    PyObject *named = done ? PyObject_CallNoArgs(told.axes_are_named) : NULL;
    PyObject *axes = named == NULL ? NULL : named == Py_False ? PyTuple_New(0) : PyObject_CallNoArgs(told.named_axes);
    PyObject *id = axes == NULL ? NULL : PyLong_FromVoidPtr(configuration);
    if (id != NULL) {
        made = PyTuple_Pack(4, kinds, *own(state, MODE), id, axes);
    }
    Py_XDECREF(kinds);
    Py_XDECREF(named);
    Py_XDECREF(axes);
    Py_XDECREF(id);
    return made;
}

/* Have a state that was made for a walk that led to nothing count as never met, as it is made again then: the table of places that it shares with
   all before it ends before it, or that would be copied. */
static void
unmeet(PyObject *fresh)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (*own(fresh, KNOWN) == Py_False) {
        PyObject *table = *own(fresh, TABLE);
        Py_ssize_t n = PyLong_AsSsize_t(((State *)fresh)->n_slots), first = n - PyTuple_GET_SIZE(((State *)fresh)->slots);
        if ((!is_alone(fresh) && PyDict_DelItem(told.met, *own(fresh, HASH)) < 0) ||
            (n == PyList_GET_SIZE(table) && PyList_SetSlice(table, first, n, NULL) < 0)) {
            PyErr_Clear();
        }
    }
    PyErr_Restore(type, value, trace);
}

/* Record an entry that was not met on slots of a state, of an op that was recorded before on such inputs: its result, or NULL without an exception
   if that is not done here. */
static PyObject *
continued(Walk *walk, State *start, PyObject *op, PyObject *const *slots, Py_ssize_t n)
{
    PyObject *state = (PyObject *)walk->state, *child = NULL, *made = NULL;
    if ((PyObject *)Py_TYPE(state) != told.state || !may_meet(state) || walk->segment->configuration == NULL) {
        return NULL;
    }
    PyObject *forms = PyObject_GetAttr(op, name_forms), *known = forms == NULL ? NULL : about(state, walk->segment->configuration, slots, n);
    PyObject *form = known != NULL && PyDict_Check(forms) ? Py_XNewRef(PyDict_GetItemWithError(forms, known)) : NULL;
    PyObject *where = NULL, *now = NULL, *key = NULL, *inputs = NULL;
    if (form != NULL) {
        PyObject *files[] = {told.foreign, told.others};
        where = line_outside(NULL, files, 2);
        now = PyObject_GetAttr(told.clock, name_now);
        key = PyTuple_New(n + 1);
        inputs = PyTuple_New(n);
    }
    if (where != NULL && PyTuple_CheckExact(where) && now != NULL && key != NULL && inputs != NULL) {
        PyTuple_SET_ITEM(key, 0, Py_NewRef(op));
        for (Py_ssize_t i = 0; i < n; i++) {
            PyTuple_SET_ITEM(key, i + 1, Py_NewRef(slots[i]));
            PyTuple_SET_ITEM(inputs, i, Py_NewRef(slots[i]));
        }
        PyObject *args[] = {state, op, form, inputs, where, key, told.met, now};
        child = on_trie(state, key, formed(NULL, args, 8));
        if (child != NULL && !is_a(child, &State_type)) {
            Py_CLEAR(child);
        }
        made = child == NULL ? NULL : hand_out(walk, start, (State *)Py_NewRef(child));
        if (made == NULL && child != NULL) { /* it is full, and to run */
            unmeet(child);
        }
        Py_XDECREF(child);
    }
    Py_XDECREF(forms);
    Py_XDECREF(known);
    Py_XDECREF(form);
    Py_XDECREF(where);
    Py_XDECREF(now);
    Py_XDECREF(key);
    Py_XDECREF(inputs);
    return made;
}

/* Have Python record an entry on slots of a segment that was not met there: NULL without an exception where it is to begin anew. */
static PyObject *
followed(Segment *segment, PyObject *op, PyObject *const *slots, PyObject *const *inputs, Py_ssize_t n)
{
    PyObject *at = PyTuple_New(n), *given = PyTuple_New(n), *made = NULL;
    if (at != NULL && given != NULL) {
        for (Py_ssize_t i = 0; i < n; i++) {
            PyTuple_SET_ITEM(at, i, Py_NewRef(slots[i]));
            PyTuple_SET_ITEM(given, i, Py_NewRef(inputs[i]));
        }
        PyObject *args[] = {(PyObject *)segment, op, at, given};
        made = PyObject_Vectorcall(told.follow, args, 4, NULL);
    }
    Py_XDECREF(at);
    Py_XDECREF(given);
    if (made == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear(); /* who called in Python says it in words of his own */
    }
    return made;
}

/* Record one entry: return its result, or NULL without an exception if that is not done here. */
static PyObject *
fast(PyObject *op, PyObject *const *inputs, Py_ssize_t n)
{
    if (n > MOST || told.changes == NULL) {
        return NULL;
    }
    Walk walk;
    int begun = 0;
    begin_walk(&walk);
    walk.segment = staged(walk.thread, &walk.staged);
    if (walk.segment == NULL && !PyErr_Occurred()) {
        walk.segment = recording(walk.thread, &begun);
    }
    if (walk.segment == NULL) {
        return NULL;
    }
    Segment *segment = walk.segment;
    PyObject *result = NULL, *held = NULL, *slots[MOST]; /* not zeroed, which would be a sixth of this function's time */
    Py_ssize_t known = 0;
    State *start = (State *)segment->state;
    if (start == NULL || !is_a(start, &State_type) || segment->entered == NULL || segment->cells == NULL ||
        segment->leaves == NULL || segment->origins == NULL || segment->leaf_lines == NULL || segment->scalars == NULL) {
        goto end;
    }
    held = Py_NewRef((PyObject *)start);
    walk.state = (State *)Py_NewRef((PyObject *)start);
    walk.makes = (PyObject *)Py_TYPE(start) == told.state && (PyObject *)Py_TYPE(op) == told.op && may_meet((PyObject *)start);
    for (; known < n; known++) {
        Handle *handle = as_handle(inputs[known]);
        slots[known] = handle != NULL ? slot_of(&walk, handle) : slot_of_value(&walk, inputs[known]);
        if (slots[known] == NULL) {
            goto end;
        }
    }
    PyObject *child = found(walk.state, op, slots, n);
    if (child != NULL) {
        result = hand_out(&walk, start, (State *)child);
    } else if (walk.makes && !PyErr_Occurred()) {
        result = continued(&walk, start, op, slots, n);
    }
    if (result == NULL && child == NULL && walk.count == 0 && !begun && walk.staged == NULL && !PyErr_Occurred()) {
        result = followed(segment, op, slots, inputs, n);
    }
end:
    for (int i = walk.count - 1; result == NULL && walk.makes && i >= 0; i--) {
        if (walk.entering[i].fresh != NULL) {
            unmeet(walk.entering[i].fresh);
        }
    }
    clear_fields(slots, slots + known);
    end_walk(&walk);
    Py_XDECREF(held);
    if (begun && result == NULL) { /* nobody else holds it so far */
        Py_XSETREF(walk.thread->begun, Py_NewRef((PyObject *)segment));
    }
    Py_DECREF(segment);
    return result;
}

/* Let go of a segment that was begun here for an entry that the recorder in Python has recorded. */
static PyObject *
went_on(PyObject *made)
{
    Thread *thread = this_thread();
    if (thread != NULL && thread->begun != NULL) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        Py_CLEAR(thread->begun);
        PyErr_Restore(type, value, trace);
    }
    return made;
}

/* The same with the recorder in Python for what is not done here. */
static PyObject *
record_all(PyObject *op, PyObject *const *inputs, Py_ssize_t n)
{
    PyObject *made = fast(op, inputs, n);
    if (made != NULL || PyErr_Occurred()) {
        return made;
    }
    PyObject *list = PyList_New(n);
    if (list == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyList_SET_ITEM(list, i, Py_NewRef(inputs[i]));
    }
    made = PyObject_CallFunctionObjArgs(told.record, op, list, NULL);
    Py_DECREF(list);
    return went_on(made);
}

/* -- calls ----------------------------------------------------------------------------------------------------------------------------- */

#define PARTS 48 /* of what a call is known by */

typedef struct { /* what a call is known by, as quick_key of tape/mirrored/quick.py makes it, and its inputs (borrowed) */
    PyObject *parts[PARTS], *inputs[MOST];
    Py_ssize_t n_parts, n_inputs;
} Call;

/* Add a part, of which the reference is taken over. */
static int
add_part(Call *call, PyObject *part)
{
    if (part == NULL || call->n_parts == PARTS) {
        Py_XDECREF(part);
        return 0;
    }
    call->parts[call->n_parts++] = part;
    return 1;
}

static int
add_input(Call *call, PyObject *mark, PyObject *value)
{
    if (call->n_inputs == MOST) {
        return 0;
    }
    call->inputs[call->n_inputs++] = value;
    return add_part(call, Py_NewRef(mark));
}

static inline int
is_number(PyObject *value)
{
    return PyFloat_CheckExact(value) || PyLong_CheckExact(value) || PyBool_Check(value) || PyComplex_CheckExact(value);
}

static int
add_items(Call *call, PyObject *items, int take_arrays)
{
    Py_ssize_t n = PySequence_Fast_GET_SIZE(items);
    if (!add_part(call, Py_NewRef((PyObject *)Py_TYPE(items))) || !add_part(call, PyLong_FromSsize_t(n))) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < n && i < PySequence_Fast_GET_SIZE(items); i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(items, i);
        int done;
        if (take_arrays && (is_number(item) || is_generic(item))) {
            done = add_input(call, told.number_mark, item); /* an integer that may not fit is not recorded here */
        } else if (PyLong_CheckExact(item) || PyUnicode_CheckExact(item)) {
            done = add_part(call, Py_NewRef(item));
        } else if (as_handle(item) != NULL) {
            done = add_input(call, told.array_mark, item);
        } else {
            done = (PyTuple_CheckExact(item) || PyList_CheckExact(item)) && add_items(call, item, take_arrays);
        }
        if (!done) {
            return 0;
        }
    }
    return 1;
}

static int
add_argument(Call *call, PyObject *a, int takes)
{
    PyObject *type = (PyObject *)Py_TYPE(a);
    if (as_handle(a) != NULL) {
        return add_input(call, told.array_mark, a);
    }
    if (takes && (is_number(a) || is_generic(a))) {
        return add_input(call, told.number_mark, a);
    }
    if (PyFloat_CheckExact(a) && PyFloat_AS_DOUBLE(a) == 0.0) {
        return 0;
    }
    if (PyBool_Check(a) || PyLong_CheckExact(a) || PyFloat_CheckExact(a) || PyUnicode_CheckExact(a) || a == Py_None || PyType_Check(a) ||
        PyObject_TypeCheck(a, (PyTypeObject *)told.dtype)) {
        return add_part(call, Py_NewRef(type)) && add_part(call, Py_NewRef(a));
    }
    if (PyTuple_CheckExact(a) || PyList_CheckExact(a)) {
        return add_items(call, a, takes == told.sequence);
    }
    return (type == told.numpy || PySet_Contains(told.arrays, type) == 1) && add_input(call, told.array_mark, a);
}

/* Return an integer that Python has under a name of the roles, or in what is under that name by key; -1 if there is none. */
static int
role(PyObject *roles, PyObject *name, Py_ssize_t position, PyObject *keyword)
{
    PyObject *held = PyObject_GetAttr(roles, name), *found = held;
    if (held == NULL) {
        return -1;
    }
    if (keyword != NULL) {
        found = PyDict_Check(held) ? PyDict_GetItemWithError(held, keyword) : NULL;
    } else if (position >= 0) {
        found = PyTuple_Check(held) && position < PyTuple_GET_SIZE(held) ? PyTuple_GET_ITEM(held, position) : NULL;
    }
    int number = found == NULL ? -1 : (int)PyLong_AsLong(found);
    Py_DECREF(held);
    return number;
}

/* Say whether an argument takes an array, or several. */
static int
takes(PyObject *roles, Py_ssize_t position, PyObject *keyword)
{
    if (role(roles, name_scalars, -1, NULL) != 1) {
        return 0;
    }
    int found = keyword != NULL ? role(roles, name_names, -1, keyword) : role(roles, name_positions, position, NULL);
    return found >= 0 ? found : keyword != NULL || PyErr_Occurred() ? 0 : role(roles, name_rest, -1, NULL);
}

/* Tell whether a call without results of others is made inside of a transformation of JAX, of which Python takes notice (boundary.met): -1 with an
   exception. */
static int
creates_inside(const Call *call)
{
    for (Py_ssize_t i = 0; i < call->n_inputs; i++) {
        Handle *handle = as_handle(call->inputs[i]);
        if (handle != NULL && handle->segment != Py_None) {
            return 0;
        }
    }
    PyObject *traced = runs.in_trace == NULL ? Py_NewRef(Py_True) : PyObject_CallNoArgs(runs.in_trace);
    Py_XDECREF(traced);
    return traced == NULL ? -1 : traced != Py_False;
}

/* Tell whether an argument is what it was where it is the same object: a number, a text, or a tuple of integers. */
static int
stays(PyObject *a)
{
    Py_ssize_t n = PyTuple_CheckExact(a) ? PyTuple_GET_SIZE(a) : 0, i = 0;
    while (i < n && PyLong_CheckExact(PyTuple_GET_ITEM(a, i))) {
        i++;
    }
    return PyTuple_CheckExact(a) ? i == n : a == Py_None || is_number(a) || PyUnicode_CheckExact(a);
}

/* Note that a call came to an op, where its inputs are arguments that are Variables, and the others stay: (op, names, arguments), with the
   mark of an array in place of each input. */
static void
note_call(Function *self, PyObject *op, PyObject *const *args, Py_ssize_t all, PyObject *kwnames, Py_ssize_t inputs)
{
    PyObject *call = PyTuple_New(all + 2);
    if (call == NULL) {
        PyErr_Clear();
        return;
    }
    PyTuple_SET_ITEM(call, 0, Py_NewRef(op));
    PyTuple_SET_ITEM(call, 1, Py_NewRef(kwnames == NULL ? Py_None : kwnames));
    for (Py_ssize_t i = 0; i < all; i++) {
        int input = as_handle(args[i]) != NULL;
        if (!input && !stays(args[i])) {
            Py_DECREF(call);
            return;
        }
        inputs -= input;
        PyTuple_SET_ITEM(call, i + 2, Py_NewRef(input ? told.array_mark : args[i]));
    }
    if (inputs != 0) { /* a number is one */
        Py_DECREF(call);
        return;
    }
    PyObject *before = self->latest[self->turn];
    self->latest[self->turn] = call;
    self->turn = (self->turn + 1) % CALLS;
    Py_XDECREF(before);
}

/* Return the op of a call like one of the latest (borrowed), and its inputs; NULL where it is none. */
static PyObject *
latest_call(Function *self, PyObject *const *args, Py_ssize_t all, PyObject *kwnames, Call *call)
{
    for (int k = 0; k < CALLS && self->latest[k] != NULL; k++) {
        PyObject *known = self->latest[k];
        Py_ssize_t i = 0;
        if (PyTuple_GET_ITEM(known, 1) != (kwnames == NULL ? Py_None : kwnames) || PyTuple_GET_SIZE(known) != all + 2) {
            continue;
        }
        for (call->n_inputs = 0; i < all; i++) {
            PyObject *expected = PyTuple_GET_ITEM(known, i + 2);
            if (expected == told.array_mark && call->n_inputs < MOST && as_handle(args[i]) != NULL) {
                call->inputs[call->n_inputs++] = args[i];
            } else if (expected != args[i] || expected == told.array_mark) {
                break;
            }
        }
        if (i == all) {
            return PyTuple_GET_ITEM(known, 0);
        }
    }
    call->n_inputs = 0;
    return NULL;
}

/* Record a call that looks like a former one; NULL without an exception if that is not done here. */
static PyObject *
known_call(Function *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Call call;
    PyObject *made = NULL;
    call.n_parts = call.n_inputs = 0; /* the rest is not zeroed */
    Py_ssize_t all = nargs + (kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames));
    PyObject *op = Py_XNewRef(latest_call(self, args, all, kwnames, &call));
    int again = op != NULL;
    for (Py_ssize_t i = 0; !again && i < all; i++) {
        PyObject *keyword = i < nargs ? NULL : PyTuple_GET_ITEM(kwnames, i - nargs);
        if (keyword != NULL && !add_part(&call, Py_NewRef(keyword))) {
            goto end;
        }
        int role = as_handle(args[i]) != NULL ? 1 : takes(self->roles, i, keyword);
        if (PyErr_Occurred() || !add_argument(&call, args[i], role)) {
            goto end;
        }
    }
    if (creates_inside(&call) != 0) {
        goto end;
    }
    if (!again) {
        PyObject *key = PyTuple_New(call.n_parts);
        if (key == NULL) {
            goto end;
        }
        for (Py_ssize_t i = 0; i < call.n_parts; i++) {
            PyTuple_SET_ITEM(key, i, Py_NewRef(call.parts[i]));
        }
        op = Py_XNewRef(PyDict_GetItemWithError(self->known, key));
        Py_DECREF(key);
    }
    if (op != NULL) {
        if (kwnames == NULL && nargs == 1 && call.n_inputs == 1 && call.n_parts == 1) {
            Py_XSETREF(self->one, Py_NewRef(op)); /* of one Variable and nothing else: found at once from now on */
        } else if (!again) {
            note_call(self, op, args, all, kwnames, call.n_inputs);
        }
        made = fast(op, call.inputs, call.n_inputs);
    }
end:
    Py_XDECREF(op);
    clear_fields(call.parts, call.parts + call.n_parts);
    return made;
}

#define INDICES 64 /* of Variables of some kind that are found at once */

static struct { PyObject *of, *kind, *key, *plan; } indices[INDICES]; /* `of`: the plans among which it is */

/* Return an item of an index, and how many there are. */
static inline PyObject *
index_item(PyObject *index, Py_ssize_t i)
{
    return PyTuple_CheckExact(index) ? PyTuple_GET_ITEM(index, i) : index;
}

static inline Py_ssize_t
index_length(PyObject *index)
{
    return PyTuple_CheckExact(index) ? PyTuple_GET_SIZE(index) : 1;
}

/* Return where an index of a Variable of some kind is noted, by the objects in it: those written in a program are the same at every call. */
static inline int
index_place(PyObject *kind, PyObject *index)
{
    uintptr_t sum = (uintptr_t)kind / 16;
    for (Py_ssize_t i = 0; i < index_length(index); i++) {
        PyObject *item = index_item(index, i);
        PySliceObject *slice = (PySliceObject *)item;
        sum = 31 * sum + (PySlice_Check(item) ? ((uintptr_t)slice->start + 3 * (uintptr_t)slice->stop + 7 * (uintptr_t)slice->step) / 16 : (uintptr_t)item / 16);
    }
    return (int)((sum ^ sum >> 8) % INDICES);
}

/* Return the plan of an index that consists of the same objects as one that was met lately; NULL where it does not. */
static PyObject *
near_plan(Function *self, int at, PyObject *kind, PyObject *index)
{
    PyObject *key = indices[at].of == self->plans && indices[at].kind == kind ? indices[at].key : NULL;
    Py_ssize_t n = index_length(index), i = 0;
    if (key == NULL || PyTuple_GET_SIZE(key) != n + 1) {
        return NULL;
    }
    for (; i < n; i++) {
        PyObject *item = index_item(index, i), *known = PyTuple_GET_ITEM(key, i + 1);
        PySliceObject *slice = (PySliceObject *)item;
        if (PySlice_Check(item) ? !PyTuple_CheckExact(known) || PyTuple_GET_ITEM(known, 0) != slice->start || PyTuple_GET_ITEM(known, 1) != slice->stop ||
                                      PyTuple_GET_ITEM(known, 2) != slice->step
                                : known != item || PyTuple_CheckExact(known)) {
            return NULL;
        }
    }
    return indices[at].plan;
}

/* Note the plan of an index. */
static void
note_plan(Function *self, int at, PyObject *kind, PyObject *key, PyObject *plan)
{
    PyObject *before[] = {indices[at].of, indices[at].kind, indices[at].key, indices[at].plan};
    indices[at].of = Py_NewRef(self->plans);
    indices[at].kind = Py_NewRef(kind);
    indices[at].key = Py_NewRef(key);
    indices[at].plan = Py_NewRef(plan);
    clear_fields(before, before + 4);
}

/* Record what an index comes to by its plan; NULL without an exception if that is not done here. */
static PyObject *
by_plan(PyObject *v, PyObject *plan)
{
    PyObject *starts = PyTuple_GET_ITEM(plan, 1), *inputs[MOST] = {v};
    Py_INCREF(plan);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(starts); i++) {
        inputs[i + 1] = PyTuple_GET_ITEM(starts, i);
    }
    PyObject *made = fast(PyTuple_GET_ITEM(plan, 0), inputs, PyTuple_GET_SIZE(starts) + 1);
    Py_DECREF(plan);
    return made;
}

/* Record v[index] for an index of integers, slices, new axes and an ellipsis that was met before, as tape/variables/indexing.py has it. */
static PyObject *
known_index(Function *self, PyObject *v, PyObject *index)
{
    Handle *handle = as_handle(v);
    Kind *kind = handle == NULL ? NULL : (Kind *)((Place *)handle->place)->kind;
    if (kind == NULL || !is_a(kind, &Kind_type) || kind->aval == NULL) {
        return NULL;
    }
    int whole = PyLong_CheckExact(index), at = whole ? 0 : index_place((PyObject *)kind, index);
    PyObject *near = whole ? NULL : near_plan(self, at, (PyObject *)kind, index);
    if (near != NULL) {
        return by_plan(v, near);
    }
    PyObject *shape = PyObject_GetAttr(kind->aval, name_shape), *made = NULL, *key = NULL;
    if (shape == NULL || !PyTuple_CheckExact(shape)) {
        goto end;
    }
    if (PyLong_CheckExact(index) && PyTuple_GET_SIZE(shape) > 0) {
        Py_ssize_t n = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, 0)), position = PyLong_AsSsize_t(index);
        if (PyErr_Occurred() || position < -n || position >= n) {
            PyErr_Clear();
            goto end;
        }
        PyObject *number = PyLong_FromSsize_t(position < 0 ? position + n : position);
        PyObject *start = number == NULL ? NULL : PyDict_GetItemWithError(self->starts, number);
        Py_XDECREF(number);
        if (start != NULL) {
            PyObject *inputs[2] = {v, Py_NewRef(start)};
            made = fast(self->two, inputs, 2);
            Py_DECREF(start);
        }
        goto end;
    }
    Py_ssize_t n = index_length(index);
    key = PyTuple_New(n + 1);
    if (key == NULL) {
        goto end;
    }
    PyTuple_SET_ITEM(key, 0, Py_NewRef(shape));
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = index_item(index, i);
        if (PySlice_Check(item)) {
            PySliceObject *slice = (PySliceObject *)item;
            PyObject *bounds[3] = {slice->start, slice->stop, slice->step};
            for (int j = 0; j < 3; j++) {
                if (bounds[j] != Py_None && !PyLong_CheckExact(bounds[j])) {
                    goto end;
                }
            }
            item = PyTuple_Pack(3, bounds[0], bounds[1], bounds[2]);
        } else {
            item = PyLong_CheckExact(item) || item == Py_None || item == Py_Ellipsis ? Py_NewRef(item) : NULL;
        }
        if (item == NULL) {
            goto end;
        }
        PyTuple_SET_ITEM(key, i + 1, item);
    }
    PyObject *plan = PyDict_GetItemWithError(self->plans, key);
    if (plan != NULL && PyTuple_Check(plan) && PyTuple_GET_SIZE(plan) == 2 && PyTuple_Check(PyTuple_GET_ITEM(plan, 1)) &&
        PyTuple_GET_SIZE(PyTuple_GET_ITEM(plan, 1)) < MOST) {
        note_plan(self, at, (PyObject *)kind, key, plan);
        made = by_plan(v, plan);
    }
end:
    Py_XDECREF(key);
    Py_XDECREF(shape);
    return made;
}

static Handle *unwatched(PyObject *value, Py_ssize_t at);
static PyObject *looked_at(Handle *handle);

/* Return the number in an array without axes as Python has it; NULL without an exception where it is none of a plain type in this process. */
static PyObject *
item_of(PyObject *array)
{
    Py_buffer view;
    PyObject *item = NULL;
    if (PyObject_GetBuffer(array, &view, PyBUF_STRIDES | PyBUF_FORMAT) < 0) {
        PyErr_Clear();
        return NULL;
    }
    const char *format = view.format == NULL ? "" : view.format[0] == '=' ? view.format + 1 : view.format;
    if (view.ndim == 0 && format[0] != '\0' && format[1] == '\0') {
        switch (format[0]) {
        case 'f': item = PyFloat_FromDouble(*(float *)view.buf); break;
        case 'd': item = PyFloat_FromDouble(*(double *)view.buf); break;
        case '?': item = PyBool_FromLong(*(unsigned char *)view.buf); break;
        case 'i':
        case 'l':
        case 'q': item = view.itemsize == 4 ? PyLong_FromLong(*(int32_t *)view.buf) : view.itemsize == 8 ? PyLong_FromLongLong(*(int64_t *)view.buf) : NULL; break;
        default: break;
        }
    }
    PyBuffer_Release(&view);
    return item;
}

/* Tell whether whoever asks for a number does so in words, as callers.sink in tape/variables/callers.py has found before. */
static int
in_words(void)
{
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    if (frame == NULL) {
        return 0;
    }
    PyObject *code = (PyObject *)PyFrame_GetCode(frame), *id = PyLong_FromVoidPtr(code), *at = PyLong_FromLong(PyFrame_GetLasti(frame));
    PyObject *known = id == NULL || at == NULL ? NULL : PyDict_GetItemWithError(runs.places, id);
    int calm = known != NULL && PyTuple_CheckExact(known) && PyTuple_GET_SIZE(known) == 2 && PyTuple_GET_ITEM(known, 0) == code &&
               PyDict_CheckExact(PyTuple_GET_ITEM(known, 1)) && PyDict_GetItemWithError(PyTuple_GET_ITEM(known, 1), at) == runs.calm;
    Py_XDECREF(id);
    Py_XDECREF(at);
    Py_DECREF(code);
    Py_DECREF(frame);
    return calm;
}

/* Note that a Variable gives its value, or its number, to Python, as `note_given` in tape/graph/scope.py does. */
static void
note_given(Handle *handle)
{
    PyObject *kind = ((Place *)handle->place)->kind;
    if (is_a(kind, &Kind_type) && ((Kind *)kind)->requires_grad != Py_False) {
        Py_SETREF(this_thread()->gave, Py_NewRef(Py_True));
    }
}

/* Return the number of a Variable without axes, as a type of Python's (None: as it is); NULL without an exception if that is not done here. */
static PyObject *
number_of(PyObject *type, PyObject *variable)
{
    Handle *handle = runs.places == NULL ? NULL : unwatched(variable, told.trace);
    Kind *kind = handle == NULL ? NULL : (Kind *)((Place *)handle->place)->kind;
    if (kind == NULL || !is_a(kind, &Kind_type) || kind->aval == NULL) {
        return NULL;
    }
    PyObject *shape = PyObject_GetAttr(kind->aval, name_shape), *mode = PyTuple_GET_ITEM(this_thread()->scope, 0);
    int single = shape != NULL && PyTuple_CheckExact(shape) && PyTuple_GET_SIZE(shape) == 0;
    int asks = (type == (PyObject *)&PyFloat_Type || type == (PyObject *)&PyLong_Type) && kind->requires_grad != Py_False && mode == number_one;
    Py_XDECREF(shape);
    PyObject *value = !single || (asks && !in_words()) ? NULL : Py_XNewRef(looked_at(handle));
    PyObject *item = value == NULL ? NULL : item_of(value), *number; /* waits without the GIL: another thread may rebind the Variable */
    Py_XDECREF(value);
    if (item == NULL) {
        return NULL;
    }
    if (type == Py_None) {
        number = Py_NewRef(item);
    } else if (type == (PyObject *)&PyBool_Type) {
        number = PyBool_FromLong(PyObject_IsTrue(item));
    } else {
        number = type == (PyObject *)&PyFloat_Type ? PyNumber_Float(item) : PyNumber_Long(item);
    }
    Py_DECREF(item);
    if (number == NULL) { /* int(nan): Python says it in words */
        PyErr_Clear();
    } else if (type == Py_None || type == (PyObject *)&PyFloat_Type) {
        note_given(handle);
    }
    return number;
}

static PyObject *assigned(PyObject *module, PyObject *added);
static PyObject *entered(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
enum { SWEEP_TO_LEAVES = 1, SWEEP_TO_WANTED, DETACH, STEP, SWITCH, UFUNC };
static PyObject *swept_again(PyObject *root);
static PyObject *swept_apart(PyObject *root);
static PyObject *regained_by(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
static PyObject *stepped(PyObject *jitted, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* Record by an op that a Variable of the pending segment is cut off from the tape, as `detach` in tape/mirrored/detachment.py does, where that was done
   here before: NULL without an exception where it was not. */
static PyObject *
detached(PyObject *op, PyObject *variable)
{
    Handle *handle = unwatched(variable, told.trace);
    Thread *thread = handle == NULL ? NULL : this_thread();
    Segment *segment = thread == NULL || !unwatching(thread) || PyList_GET_ITEM(handle->cell, 0) != Py_None ? NULL : pending(thread);
    PyObject *made = NULL, *between = NULL, *after = NULL, *mode, *slot;
    State *start = NULL, *child = NULL;
    if (segment == NULL || handle->segment != (PyObject *)segment || (PyObject *)Py_TYPE(segment->state) != told.state || segment->cells == NULL ||
        *own(segment->state, MODE) != (mode = PyTuple_GET_ITEM(thread->scope, 0))) {
        goto end;
    }
    start = (State *)Py_NewRef(segment->state);
    between = Py_XNewRef(PyDict_GetItemWithError(start->next, begin.constant)); /* in the mode in which nothing is recorded, and back */
    slot = ((Place *)handle->place)->slot;
    if (between == NULL || (PyObject *)Py_TYPE(between) != told.state || (child = (State *)found((State *)between, op, &slot, 1)) == NULL ||
        (PyObject *)Py_TYPE(child) != told.state || child->quick != Py_True || (after = Py_XNewRef(PyDict_GetItemWithError(child->next, mode))) == NULL ||
        !is_a(after, &State_type)) {
        goto end;
    }
    Walk walk;
    begin_walk(&walk);
    walk.segment = segment;
    if ((made = new_handle((PyObject *)segment, child->place, empty_cell())) != NULL && commit(&walk, start, (State *)after, &made, 1) != 1) {
        Py_CLEAR(made);
    }
end:
    Py_XDECREF(start);
    Py_XDECREF(between);
    Py_XDECREF(child);
    Py_XDECREF(after);
    Py_XDECREF(segment);
    return made;
}

/* Have this thread go on in a grad mode, as `switch` in tape/graph/scope.py does: None; NULL without an exception where that is not done here. */
static PyObject *
switched(PyObject *mode)
{
    Thread *thread = begin.segment == NULL || told.state == NULL ? NULL : this_thread();
    PyObject *before = thread == NULL ? NULL : thread->scope, *start = NULL, *child = NULL, *fields = NULL, *args = NULL, *scope = NULL, *made = NULL;
    if (before == NULL || !PyTuple_Check(before) || PyTuple_GET_SIZE(before) <= begin.notes || PyTuple_GET_ITEM(before, begin.observer) != Py_None ||
        PyTuple_GET_ITEM(before, begin.notes) != Py_None) {
        return NULL;
    }
    Py_INCREF(before);
    Segment *segment = pending(thread);
    if (segment != NULL) {
        start = Py_XNewRef(segment->state);
        if (start == NULL || (PyObject *)Py_TYPE(start) != told.state || !PyDict_CheckExact(((State *)start)->next)) {
            goto end;
        }
        child = *own(start, MODE) == mode ? start : PyDict_GetItemWithError(((State *)start)->next, mode);
        if (child == NULL || !is_a(child, &State_type)) {
            child = NULL;
            goto end;
        }
        Py_INCREF(child);
    }
    Py_ssize_t n = PyTuple_GET_SIZE(before);
    if ((fields = PyTuple_New(n)) == NULL) {
        goto end;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyTuple_SET_ITEM(fields, i, Py_NewRef(i == 0 ? mode : PyTuple_GET_ITEM(before, i)));
    }
    if ((args = PyTuple_Pack(1, fields)) == NULL || (scope = PyTuple_Type.tp_new(Py_TYPE(before), args, NULL)) == NULL ||
        thread->scope != before || (segment != NULL && segment->state != start)) { /* memory was got above: finalizers may have run */
        goto end;
    }
    thread->scope = Py_NewRef(scope);
    Py_DECREF(before); /* held above */
    if (segment != NULL) {
        segment->state = Py_NewRef(child);
        Py_DECREF(start);
    }
    made = Py_NewRef(Py_None);
end:;
    PyObject *mine[] = {before, start, child, fields, args, scope, (PyObject *)segment};
    clear_fields(mine, mine + sizeof mine / sizeof *mine);
    return made;
}

/* Call the counterpart of a ufunc of NumPy that was called before, as array_ufunc in tape/variables/interception.py does; NULL without an exception where
   it is another call. */
static PyObject *
counterpart(Function *self, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *ufunc = args[1], *method = args[2];
    if (!PyUnicode_Check(method) || PyUnicode_CompareWithASCIIString(method, "__call__") != 0) {
        return NULL;
    }
    for (Py_ssize_t i = 3; i < nargs; i++) {
        if (PyList_CheckExact(args[i]) || PyTuple_CheckExact(args[i])) {
            return NULL;
        }
    }
    PyObject *known = Py_XNewRef(PyDict_GetItemWithError(self->known, ufunc));
    PyObject *result = known == NULL ? NULL : PyObject_Vectorcall(known, args + 3, nargs - 3, NULL);
    Py_XDECREF(known);
    return result;
}

static PyObject *
Function_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Function *self = (Function *)callable;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    PyObject *made = NULL;
    if (kwnames != NULL && PyTuple_GET_SIZE(kwnames) == 0) {
        kwnames = NULL;
    }
    Function *by = self->through == NULL ? self : (Function *)self->through;
    PyObject *swapped[2] = {NULL, NULL}, *const *given = args;
    if (self->swapped && nargs == 2) {
        swapped[0] = args[1];
        swapped[1] = args[0];
        given = swapped;
    }
    if (self->reads != NULL) {
        made = kwnames == NULL && nargs == 1 ? number_of(self->reads, args[0]) : NULL;
    } else if (self->does == SWEEP_TO_WANTED) {
        made = nargs == 2 || nargs == 3 ? regained_by(args, nargs, kwnames) : NULL;
    } else if (self->does == STEP) {
        made = nargs ? stepped(args[0], args + 1, nargs - 1, kwnames) : NULL;
    } else if (self->does == UFUNC) {
        made = kwnames == NULL && nargs > 3 && self->known != NULL ? counterpart(self, args, nargs) : NULL;
    } else if (self->does) {
        made = kwnames != NULL || nargs != 1 ? NULL : self->does == SWEEP_TO_LEAVES ? swept_again(args[0])
                                                                 : self->does == SWITCH        ? switched(args[0])
                                                                                               : detached(self->one, args[0]);
        if (made == NULL && self->does == SWEEP_TO_LEAVES && kwnames == NULL && nargs == 1 && !PyErr_Occurred()) {
            made = swept_apart(args[0]);
        }
    } else if (kwnames == NULL && nargs == 1 && by->one != NULL && as_handle(args[0]) != NULL) {
        made = fast(by->one, args, 1);
    } else if (kwnames == NULL && nargs == 2 && self->plans != NULL) {
        made = known_index(self, args[0], args[1]);
    } else if (kwnames == NULL && nargs == 2 && by->two != NULL) {
        made = fast(by->two, given, 2);
    } else if (by->roles != NULL && by->roles != Py_None && by->known != NULL) {
        made = known_call(by, given, nargs, kwnames);
    }
    if (made != NULL || PyErr_Occurred()) {
        return made;
    }
    return went_on(PyObject_Vectorcall(self->slow, args, nargsf, kwnames));
}

static PyTypeObject Function_type;

static PyObject *
Function_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"slow", "one", "two", "known", "through", "starts", "plans", "swapped", "reads", "does", NULL};
    PyObject *slow, *one = NULL, *two = NULL, *known = NULL, *through = NULL, *starts = NULL, *plans = NULL, *reads = NULL;
    int swapped = 0, does = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OOO!O!O!O!pOi", names, &slow, &one, &two, &PyDict_Type, &known, &Function_type, &through,
                                     &PyDict_Type, &starts, &PyDict_Type, &plans, &swapped, &reads, &does)) {
        return NULL;
    }
    if ((plans == NULL) != (starts == NULL) || (plans != NULL && two == NULL)) {
        PyErr_SetString(PyExc_TypeError, "indices have an op for one position, starts and plans");
        return NULL;
    }
    Function *self = (Function *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->slow = Py_NewRef(slow);
    self->one = Py_XNewRef(one);
    self->two = Py_XNewRef(two);
    self->known = Py_XNewRef(known);
    self->through = Py_XNewRef(through);
    self->starts = Py_XNewRef(starts);
    self->plans = Py_XNewRef(plans);
    self->reads = Py_XNewRef(reads);
    self->roles = Py_NewRef(Py_None);
    self->swapped = swapped;
    self->does = does;
    self->call = Function_call;
    return (PyObject *)self;
}

/* As functions of Python do, be a method of the objects of a class whose attribute it is. */
static PyObject *
Function_bound(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static PyObject *
Function_text(PyObject *self)
{
    PyObject *name = PyObject_GetAttrString(self, "__qualname__");
    if (name == NULL) {
        PyErr_Clear();
        return PyUnicode_FromString("<tape function>");
    }
    PyObject *text = PyUnicode_FromFormat("<tape function %U>", name);
    Py_DECREF(name);
    return text;
}

static PyObject *
Function_reduce(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return PyObject_GetAttrString(self, "__qualname__"); /* as functions, pickled by name */
}

static PyMethodDef Function_methods[] = {{"__reduce__", Function_reduce, METH_NOARGS, NULL}, {NULL}};
static PyGetSetDef Function_attributes[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL}, {NULL}};
STRUCTURE(Function, NULL, .tp_members = Function_members, .tp_getset = Function_attributes, .tp_methods = Function_methods,
          .tp_weaklistoffset = offsetof(Function, weak), .tp_dictoffset = offsetof(Function, dict), .tp_new = Function_new,
          .tp_vectorcall_offset = offsetof(Function, call), .tp_call = PyVectorcall_Call, .tp_descr_get = Function_bound,
          .tp_repr = Function_text);

/* -- numbers in programs ------------------------------------------------------------------------------------------------------------------ */

/* Tell whether two numbers are one, as _same in tape/programs/numbers.py has it; 0 also for zeros of NumPy, of which one may be negative. */
static int
same_number(PyObject *a, PyObject *b)
{
    if (a == b) {
        return 1;
    }
    if (Py_TYPE(a) != Py_TYPE(b)) {
        return 0;
    }
    if (PyFloat_CheckExact(a)) {
        double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
        return memcmp(&x, &y, sizeof x) == 0;
    }
    int same = PyObject_RichCompareBool(a, b, Py_EQ) == 1 && (PyLong_CheckExact(a) || PyObject_IsTrue(a) == 1);
    if (PyErr_Occurred()) {
        PyErr_Clear();
    }
    return same;
}

/* Return the array (borrowed) of a number among those that an argument was (Met in tape/programs/numbers.py); NULL without an exception where it is
   none of them. */
static PyObject *
array_met(PyObject *met, PyObject *number)
{
    PyObject *known = PyDict_CheckExact(met) ? PyDict_GetItemWithError(met, (PyObject *)Py_TYPE(number)) : NULL;
    PyObject *array = known != NULL && PyDict_CheckExact(known) ? PyDict_GetItemWithError(known, number) : NULL;
    if (array == NULL) {
        PyErr_Clear();
    }
    return array;
}

/* Call a program where numbers are what they were, as run of _Steady in tape/programs/numbers.py does, which is called where they are not, and where
   it has something to do at this call. */
static PyObject *
Numbers_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Numbers *self = (Numbers *)callable;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf), given = 0, i;
    PyObject *way = self->way, *few[LEAVES + 1], **passed = few, *result = NULL;
    if (way != NULL && kwnames == NULL && PyTuple_CheckExact(way) && PyTuple_GET_SIZE(way) == 3 &&
        (self->until == 0 || self->calls + 1 < self->until)) {
        if (n > LEAVES && (passed = PyMem_New(PyObject *, n + 1)) == NULL) {
            return PyErr_NoMemory();
        }
        Py_INCREF(way); /* threads replace it */
        PyObject *expected = PyTuple_GET_ITEM(way, 1), *instead = PyTuple_GET_ITEM(way, 2);
        int same = PyTuple_CheckExact(expected) && PyTuple_CheckExact(instead) && PyTuple_GET_SIZE(expected) == n && PyTuple_GET_SIZE(instead) == n;
        for (i = 0; same && i < n; i++) {
            PyObject *value = PyTuple_GET_ITEM(expected, i), *other = PyTuple_GET_ITEM(instead, i);
            if (value == Py_Ellipsis) {
                PyObject *array = other == Py_None ? args[i] : array_met(other, args[i]);
                if ((same = array != NULL)) {
                    passed[++given] = array;
                }
            } else if ((same = same_number(args[i], value)) && other != Py_None) { /* None: the program knows it */
                passed[++given] = other;
            }
        }
        if (same) {
            self->calls += self->until != 0;
            result = PyObject_Vectorcall(PyTuple_GET_ITEM(way, 0), passed + 1, (size_t)given | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        }
        Py_DECREF(way);
        if (passed != few) {
            PyMem_Free(passed);
        }
        if (same) {
            return result;
        }
    }
    PyObject *run = PyObject_GetAttr(callable, name_run);
    result = run == NULL ? NULL : PyObject_Vectorcall(run, args, n, kwnames);
    Py_XDECREF(run);
    return result;
}

static PyObject *
Numbers_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Numbers *self = (Numbers *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->way = Py_NewRef(Py_None);
        self->call = Numbers_call;
    }
    return (PyObject *)self;
}

STRUCTURE(Numbers, "A program that is given numbers.", .tp_members = Numbers_members, .tp_new = Numbers_new,
          .tp_vectorcall_offset = offsetof(Numbers, call), .tp_call = PyVectorcall_Call);

/* -- buffers of arrays -------------------------------------------------------------------------------------------------------------------- */

/* Write a number of Python as one of this code of struct's; 0 where that has to be done otherwise: it may be an array, or too large. */
static int
written_number(char *to, PyObject *number, Py_UCS4 code)
{
    if (PyFloat_Check(number) && (code == 'f' || code == 'd')) { /* also float64 of NumPy */
        double wide = PyFloat_AS_DOUBLE(number);
        float narrow = (float)wide;
        memcpy(to, code == 'f' ? (void *)&narrow : (void *)&wide, code == 'f' ? sizeof narrow : sizeof wide);
        return 1;
    }
    if (PyLong_CheckExact(number) && (code == 'i' || code == 'l' || code == 'q')) {
        int over;
        long long wide = PyLong_AsLongLongAndOverflow(number, &over);
        int narrow = (int)wide;
        long middle = (long)wide;
        if (code == 'i') {
            memcpy(to, &narrow, sizeof narrow);
            return !over && narrow == wide;
        }
        memcpy(to, code == 'l' ? (void *)&middle : (void *)&wide, code == 'l' ? sizeof middle : sizeof wide);
        return !over && (code == 'q' || middle == wide);
    }
    if (PyBool_Check(number) && code == '?') {
        *to = number == Py_True;
        return 1;
    }
    return 0;
}

/* Return the buffer of some arguments, as `_filled` in tape/programs/buffers.py makes it; NULL, without an exception where that is to do it. */
static PyObject *
filled(PyObject *group, PyObject *const *args, Py_ssize_t n)
{
    PyObject *dtype = PyTuple_GET_ITEM(group, 2), *positions = PyTuple_GET_ITEM(group, 3), *sizes = PyTuple_GET_ITEM(group, 4);
    PyObject *letter = PyTuple_GET_ITEM(group, 5);
    Py_UCS4 code = PyUnicode_GET_LENGTH(letter) == 1 ? PyUnicode_READ_CHAR(letter, 0) : 0; /* of numbers */
    PyObject *asked[] = {NULL, PyTuple_GET_ITEM(group, 1), dtype};
    PyObject *buffer = PyObject_Vectorcall(PyTuple_GET_ITEM(group, 0), asked + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_buffer whole, part;
    if (buffer == NULL || PyObject_GetBuffer(buffer, &whole, PyBUF_WRITABLE) < 0) {
        Py_XDECREF(buffer);
        return NULL;
    }
    Py_ssize_t done = 0;
    int good = 1;
    for (Py_ssize_t i = 0; good && i < PyTuple_GET_SIZE(positions); i++) {
        Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(positions, i)), size = PyLong_AsSsize_t(PyTuple_GET_ITEM(sizes, i));
        if (code != 0) {
            good = at < n && done + size <= whole.len && written_number((char *)whole.buf + done, args[at], code);
            done += size;
            continue;
        }
        PyObject *array = at < n ? args[at] : Py_None, *own = (PyObject *)Py_TYPE(array) == told.numpy ? PyObject_GetAttr(array, name_dtype) : NULL;
        good = own == dtype && PyObject_GetBuffer(array, &part, PyBUF_SIMPLE) == 0; /* which lies in one piece */
        if (good) {
            if ((good = part.len == size && done + size <= whole.len)) {
                memcpy((char *)whole.buf + done, part.buf, size);
                done += size;
            }
            PyBuffer_Release(&part);
        }
        Py_XDECREF(own);
    }
    PyErr_Clear();
    PyBuffer_Release(&whole);
    if (!good) {
        Py_CLEAR(buffer);
    }
    return buffer;
}

/* Call a program with some of its arguments in buffers, as run of Buffered in tape/programs/buffers.py does, which is called where they are none of
   NumPy's, or none of the dtype. */
static PyObject *
Buffered_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Buffered *self = (Buffered *)callable;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf), others = PyTuple_GET_SIZE(self->others), groups = PyTuple_GET_SIZE(self->groups), i = 0, made = 0;
    PyObject *few[LEAVES + 1], **passed = few, *result = NULL;
    if (others + groups > LEAVES && (passed = PyMem_New(PyObject *, others + groups + 1)) == NULL) {
        return PyErr_NoMemory();
    }
    for (; i < others; i++) {
        Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(self->others, i));
        if (at >= n) {
            break;
        }
        passed[i + 1] = args[at];
    }
    while (i == others && made < groups && (passed[others + made + 1] = filled(PyTuple_GET_ITEM(self->groups, made), args, n)) != NULL) {
        made++;
    }
    int all = kwnames == NULL && made == groups;
    if (all) {
        result = PyObject_Vectorcall(self->program, passed + 1, (size_t)(others + groups) | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    }
    clear_fields(passed + others + 1, passed + others + 1 + made);
    if (passed != few) {
        PyMem_Free(passed);
    }
    if (!all && !PyErr_Occurred()) {
        PyObject *run = PyObject_GetAttr(callable, name_run);
        result = run == NULL ? NULL : PyObject_Vectorcall(run, args, n, kwnames);
        Py_XDECREF(run);
    }
    return result;
}

static PyObject *
Buffered_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Buffered *self = (Buffered *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->program = Py_NewRef(Py_None);
        self->groups = PyTuple_New(0);
        self->others = PyTuple_New(0);
        self->call = Buffered_call;
        if (self->groups == NULL || self->others == NULL) {
            Py_CLEAR(self);
        }
    }
    return (PyObject *)self;
}

STRUCTURE(Buffered, "A program that is given arrays and numbers in buffers.", .tp_members = Buffered_members, .tp_new = Buffered_new,
          .tp_vectorcall_offset = offsetof(Buffered, call), .tp_call = PyVectorcall_Call);

/* -- attributes ------------------------------------------------------------------------------------------------------------------------ */

/* Properties of Variables that find out here what they mostly are: a gradient, and a value that is there.  The rest is that of a property. */

static Attribute *
attribute(PyObject *self)
{
    return (Attribute *)((char *)self + PyProperty_Type.tp_basicsize);
}

static int
Attribute_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(attribute(self)->dict);
    return PyProperty_Type.tp_traverse(self, visit, arg);
}

static int
Attribute_clear(PyObject *self)
{
    Py_CLEAR(attribute(self)->dict);
    return PyProperty_Type.tp_clear == NULL ? 0 : PyProperty_Type.tp_clear(self);
}

static void
Attribute_dealloc(PyObject *self)
{
    Py_CLEAR(attribute(self)->dict);
    PyProperty_Type.tp_dealloc(self);
}

/* Return the structure of a Variable of which nobody is told that it is read; NULL for any other. */
static Handle *
unwatched(PyObject *value, Py_ssize_t at)
{
    Thread *thread = value == NULL || told.changes == NULL ? NULL : this_thread();
    return thread != NULL && unobserved(thread, at) ? as_handle(value) : NULL;
}

static PyObject *
Gradient_get(PyObject *self, PyObject *variable, PyObject *type)
{
    Handle *handle = unwatched(variable, told.trace);
    if (handle != NULL && (handle->extra == Py_None ? handle->segment == Py_None : extra_of(handle) != NULL)) {
        PyObject *grad = handle->extra == Py_None ? Py_None : *of_extra(handle->extra, GRAD);
        if (grad != Py_None || handle->segment == Py_None) {
            return Py_NewRef(grad);
        }
    }
    return PyProperty_Type.tp_descr_get(self, variable, type);
}

static int
Gradient_set(PyObject *self, PyObject *variable, PyObject *value)
{
    Handle *handle = value == Py_None ? unwatched(variable, told.trace) : NULL;
    if (handle == NULL || (handle->extra != Py_None && extra_of(handle) == NULL)) {
        return PyProperty_Type.tp_descr_set(self, variable, value);
    }
    if (handle->extra != Py_None) {
        PyObject **grad = of_extra(handle->extra, GRAD), **assigned = of_extra(handle->extra, ASSIGNED), *before[] = {*grad, *assigned};
        *grad = Py_NewRef(Py_None); /* both, and then what was there is freed */
        *assigned = Py_NewRef(Py_False);
        clear_fields(before, before + 2);
    }
    return 0;
}

static int launch(Segment *segment, PyObject *reason);

/* Return the array of a Variable (borrowed), for which what is pending runs where its program is known; NULL where it is not found here. */
static PyObject *
looked_at(Handle *handle)
{
    if (!unobserved(this_thread(), told.caller)) {
        return NULL;
    }
    PyObject *segment = handle->segment;
    if (PyList_GET_ITEM(handle->cell, 0) == Py_None && is_a(segment, &Segment_type)) {
        Py_INCREF(segment);
        int done = launch((Segment *)segment, name_look);
        Py_DECREF(segment);
        if (done != 1 || as_handle((PyObject *)handle) == NULL) { /* a finalizer may have rebound it */
            return NULL;
        }
    }
    PyObject *value = PyList_GET_ITEM(handle->cell, 0);
    return PySet_Contains(told.arrays, (PyObject *)Py_TYPE(value)) == 1 ? value : NULL;
}

static PyObject *
Value_get(PyObject *self, PyObject *variable, PyObject *type)
{
    Handle *handle = unwatched(variable, told.trace);
    PyObject *value = handle == NULL ? NULL : looked_at(handle);
    if (value != NULL) {
        note_given(handle);
        return Py_NewRef(value);
    }
    return PyErr_Occurred() ? NULL : PyProperty_Type.tp_descr_get(self, variable, type);
}

#define ATTRIBUTE(Type, ...)                                                                                                                \
    static PyTypeObject Type##_type = {                                                                                                     \
        PyVarObject_HEAD_INIT(NULL, 0)                                                                                                      \
        .tp_name = "tape._recorder." #Type,                                                                                                 \
        .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,                                                                                \
        .tp_traverse = Attribute_traverse,                                                                                                  \
        .tp_clear = Attribute_clear,                                                                                                        \
        .tp_dealloc = Attribute_dealloc,                                                                                                    \
        __VA_ARGS__}

ATTRIBUTE(Gradient, .tp_descr_get = Gradient_get, .tp_descr_set = Gradient_set);
ATTRIBUTE(Value, .tp_descr_get = Value_get);

static int
ready_attribute(PyTypeObject *type)
{
    type->tp_base = &PyProperty_Type;
    type->tp_basicsize = PyProperty_Type.tp_basicsize + (Py_ssize_t)sizeof(Attribute);
    type->tp_dictoffset = PyProperty_Type.tp_basicsize;
    return PyType_Ready(type);
}

/* -- the module ------------------------------------------------------------------------------------------------------------------------ */

static int
counted(const char *name, Py_ssize_t nargs, Py_ssize_t wanted)
{
    if (nargs == wanted) {
        return 1;
    }
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", name, wanted, nargs);
    return 0;
}

static PyObject *
record_one(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("record_one", nargs, 2)) {
        return NULL;
    }
    return record_all(args[0], args + 1, 1);
}

static PyObject *
record_two(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("record_two", nargs, 3)) {
        return NULL;
    }
    return record_all(args[0], args + 1, 2);
}

static PyObject *
record_number(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Py_ssize_t keywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    if (!counted("record_number", nargs, 3)) {
        return NULL;
    }
    int first = keywords == 1 ? PyObject_IsTrue(args[3]) : 0; /* its one keyword */
    if (first < 0) {
        return NULL;
    }
    PyObject *swapped[2] = {args[2], args[1]};
    return record_all(args[0], first ? swapped : args + 1, 2);
}

static PyObject *
record(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("record", nargs, 2)) {
        return NULL;
    }
    PyObject *inputs = PySequence_Tuple(args[1]); /* one that nobody changes meanwhile */
    if (inputs == NULL) {
        return NULL;
    }
    PyObject *made = record_all(args[0], ((PyTupleObject *)inputs)->ob_item, PyTuple_GET_SIZE(inputs));
    Py_DECREF(inputs);
    return made;
}

/* Have a new segment hold nothing so far, as tape/graph/segment.py has it. */
static PyObject *
emptied(PyObject *Py_UNUSED(module), PyObject *value)
{
    if (!is_a(value, &Segment_type)) {
        PyErr_SetString(PyExc_TypeError, "what is emptied is a segment");
        return NULL;
    }
    return empty((Segment *)value) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
handle(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("handle", nargs, 3)) {
        return NULL;
    }
    return new_handle(args[0], args[1], Py_NewRef(args[2]));
}

/* Return the slots of the cells in a dict to which somebody refers beside it, and of those of a segment's (if there is one) that are not in it yet. */
static PyObject *
held_in(PyObject *cells, Segment *segment)
{
    Py_ssize_t n = 0, at = 0, i = 0, further = segment == NULL ? 0 : segment->n_recent;
    PyObject *slot, *cell;
    while (PyDict_Next(cells, &at, &slot, &cell)) {
        n += Py_REFCNT(cell) > 1;
    }
    for (Py_ssize_t j = 0; j < further; j++) {
        n += Py_REFCNT(segment->recent[j].cell) > 1;
    }
    PyObject *slots = PyTuple_New(n);
    for (at = 0; slots != NULL && i < n && PyDict_Next(cells, &at, &slot, &cell);) {
        if (Py_REFCNT(cell) > 1) {
            PyTuple_SET_ITEM(slots, i++, Py_NewRef(slot));
        }
    }
    for (Py_ssize_t j = 0; slots != NULL && i < n && segment != NULL && j < segment->n_recent; j++) {
        if (Py_REFCNT(segment->recent[j].cell) > 1) {
            PyTuple_SET_ITEM(slots, i++, Py_NewRef(segment->recent[j].slot));
        }
    }
    if (slots != NULL && i < n) { /* garbage was collected for the tuple, and held some */
        _PyTuple_Resize(&slots, i);
    }
    return slots;
}

/* The same for Python, of a dict. */
static PyObject *
held(PyObject *Py_UNUSED(module), PyObject *cells)
{
    if (!PyDict_CheckExact(cells)) {
        PyErr_SetString(PyExc_TypeError, "the cells of a segment are in a dict");
        return NULL;
    }
    return held_in(cells, NULL);
}

/* Return the values in some cells. */
static PyObject *
gathered(PyObject *Py_UNUSED(module), PyObject *cells)
{
    if (!PyList_CheckExact(cells)) {
        PyErr_SetString(PyExc_TypeError, "the cells of leaves are in a list");
        return NULL;
    }
    Py_ssize_t n = PyList_GET_SIZE(cells);
    PyObject *values = PyList_New(n);
    for (Py_ssize_t i = 0; values != NULL && i < n; i++) {
        PyObject *cell = i < PyList_GET_SIZE(cells) ? PyList_GET_ITEM(cells, i) : NULL;
        if (cell == NULL || !PyList_CheckExact(cell) || PyList_GET_SIZE(cell) != 1) {
            PyErr_SetString(PyExc_TypeError, "a leaf of a pending segment is in a cell");
            Py_CLEAR(values);
        } else {
            PyList_SET_ITEM(values, i, Py_NewRef(PyList_GET_ITEM(cell, 0)));
        }
    }
    return values;
}

/* Tell whether a NumPy array is what was copied, as tape/graph/constants.py has it. */
static PyObject *
unchanged(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    return counted("unchanged", nargs, 2) ? Py_NewRef(same_array(args[0], args[1]) ? Py_True : Py_False) : NULL;
}

/* Put results into the cells of some slots, which are in a dict, or those of a segment, the first of them in this order; return these cells by slot. */
static PyObject *
stored_in(PyObject *cells, Segment *segment, PyObject *live, PyObject *values)
{
    PyObject *results = PySequence_Fast(values, "results are a sequence"), *saved = NULL;
    Py_ssize_t next = 0;
    if (results == NULL) {
        return NULL;
    }
    if (!PyDict_CheckExact(cells) || !PyTuple_CheckExact(live)) {
        PyErr_SetString(PyExc_TypeError, "the cells of a segment are in a dict, and slots in a tuple");
        goto end;
    }
    saved = PyDict_New();
    for (Py_ssize_t i = 0; saved != NULL && i < PyTuple_GET_SIZE(live) && i < PySequence_Fast_GET_SIZE(results); i++) {
        PyObject *slot = PyTuple_GET_ITEM(live, i), *cell = segment == NULL ? PyDict_GetItemWithError(cells, slot) : cell_at(segment, slot, &next);
        if (cell == NULL || !PyList_CheckExact(cell) || PyList_GET_SIZE(cell) != 1) {
            if (!PyErr_Occurred()) {
                PyErr_SetObject(PyExc_KeyError, slot);
            }
            Py_CLEAR(saved);
        } else if (PyDict_SetItem(saved, slot, cell) < 0) {
            Py_CLEAR(saved);
        } else {
            PyObject *old = PyList_GET_ITEM(cell, 0);
            PyList_SET_ITEM(cell, 0, Py_NewRef(PySequence_Fast_GET_ITEM(results, i)));
            spare_collector(cell);
            Py_DECREF(old);
        }
    }
end:
    Py_DECREF(results);
    return saved;
}

/* The same for Python, of a dict. */
static PyObject *
stored(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    return counted("stored", nargs, 3) ? stored_in(args[0], NULL, args[1], args[2]) : NULL;
}

/* Have the leaves that waited for a segment which has run wait no longer, as Segment.ran in tape/graph/segment.py does: 0, or -1 with an exception. */
static int
leave(Segment *segment)
{
    PyObject *list = segment->leaf_places;
    if (list == NULL || !PyList_CheckExact(list) || PyList_GET_SIZE(list) == 0) {
        return 0;
    }
    PyObject *none = PyList_New(0), *over = none == NULL ? NULL : PyObject_CallNoArgs(runs.over);
    int failed = over == NULL;
    if (!failed) {
        segment->leaf_places = Py_NewRef(none);
        for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(list); i++) {
            PyObject *place = PyObject_CallNoArgs(PyList_GET_ITEM(list, i));
            failed = place == NULL || (place != Py_None && PyObject_SetAttr(place, name_segment, over) < 0);
            Py_XDECREF(place);
        }
        Py_DECREF(list);
    }
    Py_XDECREF(none);
    Py_XDECREF(over);
    return -failed;
}

/* Put results into their cells, as `stored`, for a segment that keeps nothing else, and have it be one that has run: True if that is done.
   Sweeps to leaves behind it find its origins where these are kept; `nothing` is what such a run keeps. */
static PyObject *
handed(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("handed", nargs, 5)) {
        return NULL;
    }
    Segment *segment = (Segment *)args[0];
    if (!is_a(args[0], &Segment_type) || segment->leaf_places == NULL || !PyList_CheckExact(segment->leaf_places) || segment->origins == NULL ||
        !PyDict_CheckExact(segment->origins)) {
        Py_RETURN_FALSE;
    }
    PyObject *origins = args[3] == Py_True ? Py_NewRef(segment->origins) : NULL;
    if (origins == NULL) {
        PyObject *cut = PyObject_GetAttr(segment->state, name_cut);
        if (cut == NULL) {
            return NULL;
        }
        int none = PyFrozenSet_CheckExact(cut) && PySet_GET_SIZE(cut) == 0;
        Py_DECREF(cut);
        if (!none) {
            Py_RETURN_FALSE;
        }
        origins = PyDict_New();
    }
    PyObject *cells = PyDict_New(), *entered = PyDict_New(), *functions = PyDict_New();
    PyObject *leaves = PyList_New(0), *borrowed = PyList_New(0), *saved = NULL;
    if (origins != NULL && cells != NULL && entered != NULL && functions != NULL && leaves != NULL && borrowed != NULL) {
        saved = stored_in(segment->cells, segment, args[1], args[2]);
    }
    struct { PyObject **field, *value; } now[] = {
        {&segment->run, Py_NewRef(args[4])}, {&segment->open, Py_NewRef(Py_False)}, {&segment->cells, cells},
        {&segment->entered, entered}, {&segment->functions, functions}, {&segment->leaves, leaves},
        {&segment->borrowed, borrowed}, {&segment->origins, origins}};
    for (size_t i = 0; i < sizeof now / sizeof *now; i++) { /* all of them, and then what was there is freed */
        if (saved != NULL) {
            PyObject *before = *now[i].field;
            *now[i].field = now[i].value;
            now[i].value = before;
        }
    }
    for (size_t i = 0; i < sizeof now / sizeof *now; i++) {
        if (saved != NULL && now[i].field == &segment->leaves) {
            drop_leaves(now[i].value);
        } else {
            Py_XDECREF(now[i].value);
        }
    }
    if (saved != NULL) {
        drop_recent(segment);
    }
    int failed = saved == NULL || leave(segment) < 0;
    Py_XDECREF(saved);
    return failed ? NULL : Py_NewRef(Py_True);
}

static inline PyObject **
of_site(PyObject *site, int field)
{
    return (PyObject **)((char *)site + runs.own[field]);
}

/* Tell whether a run for some reason comes from a site again, as flushed in tape/programs/telling.py has it. */
static int
comes_from(PyObject *site, PyObject *reason)
{
    if (site == NULL || (PyObject *)Py_TYPE(site) != runs.site || *of_site(site, REASON) != reason || *of_site(site, DUE) != Py_None) {
        return 0;
    }
    PyObject *wanted = *of_site(site, CODE);
    long at = PyLong_AsLong(*of_site(site, INSTRUCTION));
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    int there = 0;
    while (frame != NULL) {
        PyObject *code = (PyObject *)PyFrame_GetCode(frame);
        PyFrameObject *back = NULL;
        if (code == wanted) {
            there = PyFrame_GetLasti(frame) == at;
        } else {
            PyObject *file = PyObject_GetAttr(code, name_filename);
            if (file != NULL && PyDict_GetItemWithError(runs.files, file) == Py_False) { /* this library's: the user's is further up */
                back = PyFrame_GetBack(frame);
            }
            Py_XDECREF(file);
        }
        Py_DECREF(code);
        Py_DECREF(frame);
        frame = back;
    }
    return there && !PyErr_Occurred();
}

/* Count a run of a structure by a program, from the program's site. */
static int
count_run(PyObject *state, Choice *program)
{
    PyObject *then = PyObject_GetAttr(runs.clock, name_now), *now = then == NULL ? NULL : PyNumber_Add(then, number_one);
    PyObject *count = PyNumber_Add(*of_site(program->site, COUNT), number_one);
    long long size = PyLong_AsLongLong(program->size);
    int failed = now == NULL || count == NULL || PyErr_Occurred() || PyObject_SetAttr(runs.clock, name_now, now) < 0;
    if (!failed) {
        Py_SETREF(*own(state, USED), Py_NewRef(now));
        Py_SETREF(*of_site(program->site, COUNT), Py_NewRef(count));
        ((Counts *)runs.counts)->hits += 1;
        ((Counts *)runs.counts)->executed += size;
    }
    Py_XDECREF(then);
    Py_XDECREF(now);
    Py_XDECREF(count);
    return -failed;
}

/* Store what a run has computed in a segment that keeps some of it for sweeps, as _store in tape/programs/program.py has it: 1 if that is done, 0 if
   it is not done here, -1 with an exception. */
static int
keep_results(Segment *segment, Choice *program, PyObject *results)
{
    PyObject *residuals = PyTuple_GET_ITEM(program->kept, 0), *dead = PyTuple_GET_ITEM(program->kept, 2);
    Py_ssize_t n = PyTuple_GET_SIZE(program->live), further = PyTuple_GET_SIZE(residuals);
    if (!PyList_CheckExact(results) || PyList_GET_SIZE(results) != n + further) {
        return 0;
    }
    PyObject *saved = stored_in(segment->cells, segment, program->live, results), *run = NULL, *released = NULL;
    for (Py_ssize_t i = 0; saved != NULL && i < further; i++) {
        PyObject *cell = cell_of(PyList_GET_ITEM(results, n + i));
        if (cell == NULL) {
            Py_CLEAR(saved);
            break;
        }
        if (PyDict_SetItem(saved, PyTuple_GET_ITEM(residuals, i), cell) < 0) {
            Py_CLEAR(saved);
        }
        Py_DECREF(cell);
    }
    PyObject *fields = saved == NULL ? NULL : PyTuple_Pack(4, saved, PyTuple_GET_ITEM(runs.nothing, 1), Py_False, Py_None);
    PyObject *args = fields == NULL ? NULL : PyTuple_Pack(1, fields);
    run = args == NULL ? NULL : PyTuple_Type.tp_new((PyTypeObject *)runs.run, args, NULL);
    released = run == NULL ? NULL : PySet_GET_SIZE(dead) ? PyNumber_Or(segment->released, dead) : Py_NewRef(segment->released);
    PyObject *cells = PyDict_New(), *entered = PyDict_New(), *borrowed = PyList_New(0);
    int done = released != NULL && cells != NULL && entered != NULL && borrowed != NULL;
    struct { PyObject **field, *value; } now[] = {
        {&segment->run, run}, {&segment->released, released}, {&segment->cells, cells}, {&segment->entered, entered}, {&segment->borrowed, borrowed}};
    for (size_t i = 0; i < sizeof now / sizeof *now; i++) { /* all of them, and then what was there is freed */
        if (done) {
            PyObject *before = *now[i].field;
            *now[i].field = now[i].value;
            now[i].value = before;
        }
    }
    for (size_t i = 0; i < sizeof now / sizeof *now; i++) {
        Py_XDECREF(now[i].value);
    }
    if (done) {
        drop_recent(segment);
    }
    done = done && leave(segment) == 0;
    if (done) {
        spare_kept(segment, saved, segment->run);
    }
    Py_XDECREF(args);
    Py_XDECREF(fields);
    Py_XDECREF(saved);
    if (done && PyObject_RichCompareBool(program->roots, number_one, Py_GT) == 1) { /* sweeps may come from several: as note in tape/programs/retention.py */
        PyObject *ref = PyWeakref_NewRef((PyObject *)segment, NULL), *noted = ref == NULL ? NULL : PyTuple_Pack(2, ref, Py_None);
        PyObject *list = PyTuple_GET_ITEM(program->kept, 4) == Py_True ? runs.heavy : runs.shared;
        PyObject *none = noted == NULL ? NULL : PyObject_CallMethodOneArg(list, name_append, noted);
        Py_XDECREF(none);
        Py_XDECREF(noted);
        Py_XDECREF(ref);
    }
    return done && !PyErr_Occurred() ? 1 : -1;
}

/* Have gradients of the step before wait no longer: 1 if that is done, 0 where somebody holds one, -1 with an exception. */
static int
drop_deferred(PyObject *deferral)
{
    PyObject *before = PyObject_GetAttr(deferral, name_before), *last = before == NULL ? NULL : PyObject_CallNoArgs(before), *run;
    int done = last == NULL ? -1 : 1;
    if (last != NULL && is_a(last, &Segment_type) && PyTuple_Check(run = ((Segment *)last)->run) && PyTuple_GET_SIZE(run) == 4 &&
        PyTuple_Check(PyTuple_GET_ITEM(run, 3))) {
        PyObject *cells = PyTuple_GET_ITEM(PyTuple_GET_ITEM(run, 3), 2), *slot, *cell;
        Py_ssize_t at = 0;
        while (done && PyDict_Next(cells, &at, &slot, &cell)) {
            done = Py_REFCNT(cell) == 1;
        }
        if (done) {
            ((Segment *)last)->run = Py_NewRef(runs.nothing);
            Py_DECREF(run);
        }
    }
    Py_XDECREF(last);
    Py_XDECREF(before);
    return done;
}

/* Store the results of a run without gradients, which wait until somebody looks, as Deferral.stored in tape/programs/deferral.py does: 1 if that is done,
   0 if it is not done here, -1 with an exception. */
static int
defer(Segment *segment, Choice *program, PyObject *deferral, PyObject *results)
{
    PyObject *later = PyObject_GetAttr(deferral, name_later), *others = PyObject_GetAttr(deferral, name_others), *cells = PyDict_New();
    PyObject *args = NULL, *run = NULL, *handing = NULL, *ref = NULL;
    Py_ssize_t next = 0;
    int done = later == NULL || others == NULL || cells == NULL ? -1 : 0;
    if (done < 0 || !PyTuple_CheckExact(later) || !PyTuple_CheckExact(others) || !PyList_CheckExact(results) ||
        PyList_GET_SIZE(results) != PyTuple_GET_SIZE(others) || (done = drop_deferred(deferral)) < 1) {
        goto end;
    }
    done = -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(later); i++) {
        PyObject *cell = cell_at(segment, PyTuple_GET_ITEM(later, i), &next);
        if (cell == NULL || PyDict_SetItem(cells, PyTuple_GET_ITEM(later, i), cell) < 0) {
            goto end;
        }
    }
    args = Py_BuildValue("(({}OO(OOO)))", PyTuple_GET_ITEM(runs.nothing, 1), Py_False, program, segment->leaves, cells);
    run = args == NULL ? NULL : PyTuple_Type.tp_new((PyTypeObject *)runs.run, args, NULL);
    ref = run == NULL ? NULL : PyWeakref_NewRef((PyObject *)segment, NULL);
    if (ref == NULL || PyObject_SetAttr(deferral, name_before, ref) < 0) {
        goto end;
    }
    PyObject *given[] = {(PyObject *)segment, others, results, PyObject_IsTrue(program->roots) == 1 ? Py_True : Py_False, run};
    handing = handed(NULL, given, 5);
    done = handing == NULL ? -1 : handing == Py_True;
end:;
    PyObject *mine[] = {later, others, cells, args, run, ref, handing};
    clear_fields(mine, mine + sizeof mine / sizeof *mine);
    return done;
}

/* Hand out what a program has computed for a segment (NULL: it has failed, with an exception), as _finish in tape/programs/program.py has it. */
static int
finish(Segment *segment, Choice *program, PyObject *results)
{
    int done = 0;
    if (results != NULL && segment->run != Py_None) { /* a finalizer looked at the same meanwhile, and handed it out */
        return 1;
    }
    if (results != NULL) {
        PyObject *deferral = PyTuple_GET_ITEM(program->kept, 5);
        if (deferral != Py_None) {
            done = defer(segment, program, deferral, results);
        } else if (PyTuple_GET_ITEM(program->kept, 1) == Py_False) {
            PyObject *given[] = {(PyObject *)segment, program->live, results, PyObject_IsTrue(program->roots) == 1 ? Py_True : Py_False, runs.nothing};
            PyObject *handing = handed(NULL, given, 5);
            done = handing == NULL ? -1 : handing == Py_True;
            Py_XDECREF(handing);
        } else {
            done = keep_results(segment, program, results);
        }
        if (done) {
            return done;
        }
    } else if (!PyErr_ExceptionMatches(PyExc_Exception)) { /* Ctrl-C: the segment is pending as before */
        return -1;
    }
    PyObject *type = NULL, *error = NULL, *trace = NULL;
    PyErr_Fetch(&type, &error, &trace);
    if (type != NULL) {
        PyErr_NormalizeException(&type, &error, &trace);
        if (trace != NULL) {
            PyException_SetTraceback(error, trace);
        }
    }
    PyObject *none = PyObject_CallFunctionObjArgs(runs.finish, segment, program, results == NULL ? Py_None : results, error == NULL ? Py_None : error, NULL);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    Py_XDECREF(none);
    return none == NULL ? -1 : 1;
}

/* Call a program on the leaves of a segment. */
static PyObject *
called(PyObject *program, PyObject *leaves)
{
    Py_ssize_t n = PyList_GET_SIZE(leaves), i = 0;
    PyObject *few[LEAVES + 1], **values = n > LEAVES ? PyMem_New(PyObject *, n + 1) : few, *results = NULL;
    if (values == NULL) {
        return PyErr_NoMemory();
    }
    for (; i < n; i++) {
        PyObject *cell = PyList_GET_ITEM(leaves, i);
        if (!PyList_CheckExact(cell) || PyList_GET_SIZE(cell) != 1) {
            PyErr_SetString(PyExc_TypeError, "a leaf of a pending segment is in a cell");
            break;
        }
        values[i + 1] = Py_NewRef(PyList_GET_ITEM(cell, 0));
    }
    if (i == n) {
        results = PyObject_Vectorcall(program, values + 1, (size_t)n | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    }
    clear_fields(values + 1, values + 1 + i);
    if (values != few) {
        PyMem_Free(values);
    }
    return results;
}

/* Tell whether a segment is this thread's, and nobody watches or changes how it runs. */
static int
plain(Thread *thread, Segment *segment)
{
    Segment *own = pending(thread);
    Py_XDECREF(own);
    return own == segment && segment->run == Py_None && segment->open == Py_True && segment->epoch != NULL &&
           segment->epoch == ((Changes *)told.changes)->epoch && segment->trace == Py_None && segment->packing == Py_None && segment->hooks != NULL &&
           PyDict_CheckExact(segment->hooks) && PyDict_GET_SIZE(segment->hooks) == 0 && PyDict_GET_SIZE(runs.meters) == 0 &&
           PyTuple_Check(thread->scope) && PyTuple_GET_SIZE(thread->scope) > runs.reproducible &&
           PyTuple_GET_ITEM(thread->scope, runs.reproducible) == Py_False && (PyObject *)Py_TYPE(segment->state) == told.state &&
           PyDict_CheckExact(segment->cells) && PyList_CheckExact(segment->leaves);
}

/* Run a segment whose lock is held: 1 if that is done, 0 if it is not done here, -1 with an exception. */
static int
launch_held(Segment *segment, PyObject *reason)
{
    PyObject *start = segment->state, *state = start, *parent, *live = NULL, *key = NULL;
    Choice *program = NULL;
    int done = 0;
    while (((State *)state)->kernel == Py_None && (parent = *own(state, PARENT)) != NULL && (PyObject *)Py_TYPE(parent) == told.state &&
           *own(parent, MODE) != *own(state, MODE)) {
        state = parent; /* nothing was recorded in that mode */
    }
    Py_INCREF(start);
    if ((live = held_in(segment->cells, segment)) == NULL || (key = PyTuple_Pack(4, name_program, live, segment->released, Py_False)) == NULL) {
        done = -1;
        goto end;
    }
    program = (Choice *)Py_XNewRef(PyDict_GetItemWithError(*own(state, CACHE), key));
    if (program == NULL || !is_a(program, &Choice_type) || program->executable == NULL || program->executable == Py_None ||
        !PyTuple_Check(program->kept) || PyTuple_GET_SIZE(program->kept) != 6 || !comes_from(program->site, reason) || segment->state != start ||
        segment->run != Py_None) { /* garbage may have been collected above, and finalizers have recorded or looked */
        goto end;
    }
    Py_SETREF(segment->open, Py_NewRef(Py_False)); /* somebody may record meanwhile: in another segment */
    Py_SETREF(segment->epoch, Py_NewRef(Py_None));
    segment->state = Py_NewRef(state);
    Py_DECREF(start); /* held above */
    done = -1;
    if (count_run(state, program) == 0) {
        PyObject *executable = Py_NewRef(program->executable), *results = called(executable, segment->leaves);
        done = finish(segment, program, results);
        Py_XDECREF(results);
        Py_DECREF(executable);
    }
end:
    Py_XDECREF(program);
    Py_XDECREF(key);
    Py_XDECREF(live);
    Py_DECREF(start);
    return done;
}

/* Run what is pending in this thread by the program that is known for it, as run_pending in tape/programs/program.py does: 1 if that is done, 0 if it is not
   done here (nothing of it has changed then), -1 with an exception. */
static int
launch(Segment *segment, PyObject *reason)
{
    Thread *thread = runs.site == NULL || told.state == NULL || told.changes == NULL ? NULL : this_thread();
    if (thread == NULL || !plain(thread, segment)) {
        return 0;
    }
    PyObject *traced = PyObject_CallNoArgs(runs.in_trace), *lock = segment->lock;
    Py_XDECREF(traced);
    if (traced != Py_False || lock == NULL) {
        return traced == NULL ? -1 : 0;
    }
    Py_INCREF(segment);
    Py_INCREF(lock);
    if (PyObject_Size(runs.shared) > 0 || PyObject_Size(runs.heavy) > 0) { /* what goes may have finalizers, which look at what is pending: before it runs */
        PyObject *none = PyObject_CallNoArgs(runs.trim);
        if (none == NULL) {
            Py_DECREF(lock);
            Py_DECREF(segment);
            return -1;
        }
        Py_DECREF(none);
    }
    PyObject *got = PyObject_CallMethodNoArgs(lock, name_acquire), *type, *value, *trace;
    int done = got == NULL ? -1 : plain(thread, segment) ? launch_held(segment, reason) : 0;
    if (got != NULL) {
        PyErr_Fetch(&type, &value, &trace);
        PyObject *gone = PyObject_CallMethodNoArgs(lock, name_release);
        Py_XDECREF(gone);
        PyErr_Restore(type, value, trace);
    }
    if (done == 1) {
        Segment *own = pending(thread);
        if (own == segment) {
            Py_SETREF(thread->segment, Py_NewRef(runs.no_segment));
        }
        Py_XDECREF(own);
    }
    Py_XDECREF(got);
    Py_DECREF(lock);
    Py_DECREF(segment);
    return done;
}

/* The same for Python. */
static PyObject *
launched(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("launched", nargs, 2)) {
        return NULL;
    }
    int done = is_a(args[0], &Segment_type) ? launch((Segment *)args[0], args[1]) : 0;
    return done < 0 ? NULL : Py_NewRef(done ? Py_True : Py_False);
}

/* Return a flag of an object, or whether a dict that it has is not empty; -1 where it is neither. */
static int
flag(PyObject *object, PyObject *name)
{
    PyObject *held = PyObject_GetAttr(object, name);
    if (held == NULL) {
        return -1;
    }
    int set = PyBool_Check(held) ? held == Py_True : PyDict_CheckExact(held) ? PyDict_GET_SIZE(held) > 0 : -1;
    Py_DECREF(held);
    return set;
}

typedef struct { /* what arrives at the leaves where a sweep ends; references of its own */
    PyObject *segment, *cells, *fresh, *reached;
    PyObject *updater; /* somebody who updates one of them, None where nobody updates another; NULL before the first */
    int sums, hooked;
} Arrival;

/* Add what arrives at one end: 1 if that is done, 0 if it is not done here. */
static int
arrive_at(Arrival *arrival, PyObject *end, PyObject *place)
{
    int done = 0;
    PyObject *ref = NULL, *variable = NULL, *gradient = NULL, *cell = NULL, *addition = NULL;
    if (!is_a(place, &Place_type) || ((Place *)place)->slot == NULL || node_hooked(end) != 0 || PySet_Contains(arrival->reached, end) != 0 ||
        PySet_Add(arrival->reached, end) < 0 || (ref = Py_XNewRef(*of_node(end, REF))) == NULL || (variable = PyObject_CallNoArgs(ref)) == NULL) {
        goto end;
    }
    if (variable == Py_None) { /* nobody holds it */
        done = 1;
        goto end;
    }
    Handle *handle = as_handle(variable);
    if (handle == NULL || extra_of(handle) == NULL) {
        goto end;
    }
    PyObject *hooks = *of_extra(handle->extra, POST_HOOKS);
    int hooked = PyDict_CheckExact(hooks) ? PyDict_GET_SIZE(hooks) > 0 : -1;
    PyObject *slot = ((Place *)place)->slot;
    cell = cell_there((Segment *)arrival->segment, slot);
    cell = Py_XNewRef(cell != NULL ? cell : PyDict_GetItemWithError(arrival->cells, slot));
    if (cell == NULL && ((cell = empty_cell()) == NULL || PyDict_SetItem(arrival->cells, slot, cell) < 0)) {
        goto end;
    }
    gradient = new_handle(arrival->segment, place, Py_NewRef(cell));
    addition = gradient == NULL ? NULL : PyTuple_Pack(4, variable, gradient, Py_None, gradient);
    if (hooked < 0 || addition == NULL || PyList_Append(arrival->fresh, addition) < 0) {
        goto end;
    }
    if (extra_of(handle) == NULL) { /* memory was got above: finalizers may have run */
        goto end;
    }
    PyObject *updater = *of_extra(handle->extra, UPDATER);
    if (arrival->updater == NULL || updater == Py_None) {
        Py_XSETREF(arrival->updater, Py_NewRef(updater));
    }
    arrival->sums |= *of_extra(handle->extra, GRAD) != Py_None;
    arrival->hooked |= hooked;
    done = 1;
end:
    Py_XDECREF(ref);
    Py_XDECREF(variable);
    Py_XDECREF(gradient);
    Py_XDECREF(cell);
    Py_XDECREF(addition);
    return done;
}

/* Gather what arrives at the leaves of a segment where a sweep of it ends that is written on `segment`: 1 if that is done, 0 if it is not done here. */
static int
arrive(Arrival *arrival, Segment *segment, Segment *swept, PyObject *ends)
{
    *arrival = (Arrival){.segment = Py_NewRef((PyObject *)segment)};
    if (swept->origins == NULL || !PyDict_CheckExact(swept->origins) || segment->cells == NULL || !PyDict_CheckExact(segment->cells) ||
        !PyTuple_CheckExact(ends)) {
        return 0;
    }
    PyObject *origins = Py_NewRef(swept->origins);
    arrival->cells = PyDict_New();
    arrival->fresh = PyList_New(0);
    arrival->reached = PySet_New(NULL);
    int done = arrival->cells != NULL && arrival->fresh != NULL && arrival->reached != NULL;
    for (Py_ssize_t i = 0; done && i < PyTuple_GET_SIZE(ends); i++) {
        PyObject *pair = PyTuple_GET_ITEM(ends, i), *end = NULL;
        done = PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) == 2 && (end = PyDict_GetItemWithError(origins, PyTuple_GET_ITEM(pair, 0))) != NULL;
        if (done) {
            Py_INCREF(end);
            done = arrive_at(arrival, end, PyTuple_GET_ITEM(pair, 1));
            Py_DECREF(end);
        }
    }
    Py_DECREF(origins);
    return done;
}

static void
free_arrival(Arrival *arrival)
{
    clear_fields(&arrival->segment, &arrival->updater + 1);
}

/* Return what arrives at the leaves of a segment where a sweep ends, as tape/sweeps/accumulation.py has it; None where it is not done here. */
static PyObject *
arrived(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("arrived", nargs, 2)) {
        return NULL;
    }
    if (!is_a(args[0], &Segment_type)) {
        Py_RETURN_NONE;
    }
    Arrival arrival;
    PyObject *made = NULL;
    if (arrive(&arrival, (Segment *)args[0], (Segment *)args[0], args[1])) {
        made = PyTuple_Pack(4, arrival.fresh, arrival.cells, arrival.sums ? Py_True : Py_False, arrival.hooked ? Py_True : Py_False);
    } else if (!PyErr_Occurred()) {
        made = Py_NewRef(Py_None);
    }
    free_arrival(&arrival);
    return made;
}

/* Advance a segment to where a sweep was written, unless it moved meanwhile: 1 if that is done, 0 if not, -1 if memory ended. */
static int
advance(Segment *segment, PyObject *start, PyObject *before, PyObject *state, PyObject *released, PyObject *cells)
{
    if (segment->state != start || segment->released != before || segment->epoch == NULL || segment->epoch != ((Changes *)told.changes)->epoch || segment->open != Py_True ||
        !PyDict_CheckExact(segment->cells)) {
        return 0;
    }
    if (have_room(segment, PyDict_GET_SIZE(cells)) < 0) {
        return -1;
    }
    PyObject *slot, *cell;
    for (Py_ssize_t at = 0; PyDict_Next(cells, &at, &slot, &cell);) {
        add_result(segment, slot, cell);
    }
    segment->state = Py_NewRef(state);
    if (released != Py_None) {
        segment->released = Py_NewRef(released);
        Py_DECREF(before);
    }
    Py_DECREF(start); /* who called refers to both */
    return 1;
}

/* Tell whether sweeps from a Variable begin in a segment, with ones where no seed is given. */
static int
is_root(Segment *segment, PyObject *variable)
{
    Handle *handle = as_handle(variable);
    Kind *kind = handle == NULL || handle->segment != (PyObject *)segment ? NULL : (Kind *)((Place *)handle->place)->kind;
    return kind != NULL && is_a(kind, &Kind_type) && kind->requires_grad == Py_True && handle->extra != NULL &&
           (handle->extra == Py_None || (extra_of(handle) != NULL && *of_extra(handle->extra, ASSIGNED) == Py_False));
}

/* Return the pending segment of this thread if a sweep from a root is decided by the tape alone, as asked of tape/sweeps/written.py has it. */
static Segment *
swept(PyObject *root)
{
    Thread *thread = told.changes == NULL ? NULL : this_thread();
    Segment *segment = thread == NULL ? NULL : pending(thread);
    if (segment == NULL) {
        return NULL;
    }
    if (segment->epoch == NULL || segment->epoch != ((Changes *)told.changes)->epoch || !is_root(segment, root) ||
        segment->hooks == NULL || !PyDict_CheckExact(segment->hooks) || PyDict_GET_SIZE(segment->hooks) != 0 || segment->retained == NULL ||
        !PyDict_CheckExact(segment->retained) || PyDict_GET_SIZE(segment->retained) != 0 || segment->packing != Py_None ||
        segment->trace != Py_None || segment->released == NULL || !unobserved(thread, told.trace) || !is_a(segment->state, &State_type) ||
        ((State *)segment->state)->next == NULL || !PyDict_CheckExact(((State *)segment->state)->next)) {
        Py_CLEAR(segment);
    }
    return segment;
}

/* Write a call of backward() again as it was written at this point of the tape before, from one root without a seed, whose key ends with what
   is given: return the segment, what was released in it before, what arrives at leaves, whether some have a gradient already, whether some
   have hooks that wait for it, and whether somebody updates all of them.  None where it is not done here: nothing has changed then. */
static PyObject *
replayed(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("replayed", nargs, 2)) {
        return NULL;
    }
    PyObject *root = args[0], *made = NULL, *start = NULL, *key = NULL, *written = NULL, *state = NULL, *results = NULL, *released = NULL;
    Arrival arrival = {NULL};
    Segment *segment = swept(root);
    if (segment == NULL) {
        goto end;
    }
    start = Py_NewRef(segment->state);
    PyObject *before = segment->released, *slot = ((Place *)((Handle *)root)->place)->slot;
    if ((key = PyTuple_Pack(5, Py_False, Py_False, before, args[1], slot)) == NULL) {
        goto end;
    }
    written = Py_XNewRef(PyDict_GetItemWithError(((State *)start)->next, key));
    if (written == NULL || (state = PyObject_GetAttr(written, name_state)) == NULL || !is_a(state, &State_type) ||
        (results = PyObject_GetAttr(written, name_results)) == NULL || (released = PyObject_GetAttr(written, name_released)) == NULL ||
        !arrive(&arrival, segment, segment, results)) {
        goto end;
    }
    before = PyTuple_GET_ITEM(key, 2); /* held by it */
    int waits = !arrival.sums && arrival.updater != NULL && arrival.updater != Py_None;
    made = PyTuple_Pack(6, (PyObject *)segment, before, arrival.fresh, arrival.sums ? Py_True : Py_False, arrival.hooked ? Py_True : Py_False,
                        waits ? Py_True : Py_False);
    if (made != NULL && advance(segment, start, before, state, released, arrival.cells) != 1) {
        Py_CLEAR(made);
    }
end:
    free_arrival(&arrival);
    Py_XDECREF(start);
    Py_XDECREF(key);
    Py_XDECREF(written);
    Py_XDECREF(state);
    Py_XDECREF(results);
    Py_XDECREF(released);
    Py_XDECREF(segment);
    return made != NULL || PyErr_Occurred() ? made : Py_NewRef(Py_None);
}

/* Set every `.grad` to its sum, as `assign` in tape/sweeps/accumulation.py does: None. */
static PyObject *
assigned_all(PyObject *added)
{
    PyObject *got = PyObject_CallMethodNoArgs(runs.assigning, name_acquire), *all = got == NULL ? NULL : assigned(NULL, added), *type, *value, *trace;
    if (got != NULL) {
        PyErr_Fetch(&type, &value, &trace);
        PyObject *gone = PyObject_CallMethodNoArgs(runs.assigning, name_release);
        Py_XDECREF(gone);
        PyErr_Restore(type, value, trace);
    }
    PyObject *done = all == Py_False ? PyObject_CallOneArg(runs.assign, added) : all == NULL ? NULL : Py_NewRef(Py_None);
    Py_XDECREF(all);
    Py_XDECREF(got);
    return done;
}

/* Have of a segment be released what was before a sweep that failed, unless what it kept is gone. */
static void
unrelease(Segment *segment, PyObject *released)
{
    if (segment->leaves != NULL && PyList_CheckExact(segment->leaves) && PyList_GET_SIZE(segment->leaves) > 0) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        Py_SETREF(segment->released, Py_NewRef(released));
        PyErr_Restore(type, value, trace);
    }
}

/* Do what backward() from one root did before at this point of the tape, as `backward` in tape/sweeps/differentiation.py does: None; NULL without an
   exception where that is not done here. */
static PyObject *
swept_again(PyObject *root)
{
    PyObject *revision = runs.rules == NULL || runs.rules == Py_None ? NULL : PyObject_GetAttr(runs.rules, name_revision), *given[] = {root, revision};
    PyObject *made = revision == NULL ? NULL : replayed(NULL, given, 2), *done = NULL;
    Py_XDECREF(revision);
    if (made == NULL || made == Py_None) {
        Py_XDECREF(made);
        return NULL;
    }
    Segment *segment = (Segment *)PyTuple_GET_ITEM(made, 0);
    PyObject *released = PyTuple_GET_ITEM(made, 1), *fresh = PyTuple_GET_ITEM(made, 2);
    int plainly = PyTuple_GET_ITEM(made, 3) == Py_False && PyTuple_GET_ITEM(made, 4) == Py_False;
    int waits = PyTuple_GET_ITEM(made, 5) == Py_True && PyFrozenSet_CheckExact(released) && PySet_GET_SIZE(released) == 0;
    int ran = !plainly ? 0 : waits ? 1 : launch(segment, name_backward);
    if (ran == 0) { /* it undoes itself what it has to */
        done = PyObject_Call(runs.accumulate, made, NULL);
        Py_DECREF(made);
        return done;
    }
    done = ran == 1 ? assigned_all(fresh) : NULL;
    if (done == NULL) {
        unrelease(segment, released);
    }
    Py_DECREF(made);
    return done;
}

/* Tell whether a segment has run as most do, so that nothing of the user's is called where it is swept: no hooks, no function, no box, no failure. */
static int
is_plain(Segment *segment)
{
    PyObject *run = segment->run, *empty[] = {segment->hooks, segment->retained, segment->functions};
    for (int i = 0; i < 3; i++) {
        if (empty[i] == NULL || !PyDict_CheckExact(empty[i]) || PyDict_GET_SIZE(empty[i]) != 0) {
            return 0;
        }
    }
    return (PyObject *)Py_TYPE(run) == runs.run && PyTuple_GET_SIZE(run) == 4 && PyDict_CheckExact(PyTuple_GET_ITEM(run, 0)) &&
           PyDict_CheckExact(PyTuple_GET_ITEM(run, 1)) && PyDict_GET_SIZE(PyTuple_GET_ITEM(run, 1)) == 0 && PyTuple_GET_ITEM(run, 2) == Py_False &&
           segment->trace == Py_None && segment->packing == Py_None && segment->released != NULL && segment->leaves != NULL &&
           PyList_CheckExact(segment->leaves) && (PyObject *)Py_TYPE(segment->state) == told.state;
}

/* Tell whether a sweep from a Variable of a segment that has run is decided by that alone, as asked in tape/sweeps/looked.py has it, and nothing is
   pending in this thread, where nobody watches. */
static int
stands_alone(Thread *thread, Segment *segment, PyObject *root)
{
    PyObject *outset = thread->outset;
    Segment *own = pending(thread);
    Py_XDECREF(own);
    return own == NULL && unwatching(thread) && unobserved(thread, told.trace) && unobserved(thread, told.forward) && unobserved(thread, told.caller) &&
           PyTuple_GET_ITEM(thread->scope, begin.packing) == Py_None && PyTuple_GET_SIZE(thread->scope) > runs.reproducible &&
           PyTuple_GET_ITEM(thread->scope, runs.reproducible) == Py_False && PyDict_GET_SIZE(runs.meters) == 0 && PyTuple_CheckExact(outset) &&
           PyTuple_GET_ITEM(outset, 0) == ((Changes *)told.changes)->epoch && PyTuple_GET_ITEM(outset, 2) == segment->configuration &&
           is_plain(segment) && PyDict_CheckExact(((State *)segment->state)->next) && is_root(segment, root);
}

/* Return the cells that enter a segment which sweeps one that has run: of its leaves, and then of what it keeps, those in these places; NULL without an
   exception where one is none. */
static PyObject *
cells_read(Segment *segment, PyObject *places)
{
    PyObject *saved = PyDict_Values(PyTuple_GET_ITEM(segment->run, 0)), *cells = saved == NULL ? NULL : PyList_New(PyTuple_GET_SIZE(places));
    Py_ssize_t n = PyList_GET_SIZE(segment->leaves);
    for (Py_ssize_t i = 0; cells != NULL && i < PyTuple_GET_SIZE(places); i++) {
        Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(places, i));
        PyObject *cell = at < 0 ? NULL : at < n ? PyList_GET_ITEM(segment->leaves, at) : at - n < PyList_GET_SIZE(saved) ? PyList_GET_ITEM(saved, at - n) : NULL;
        if (cell == NULL || !PyList_CheckExact(cell) || PyList_GET_SIZE(cell) != 1 || PyList_GET_ITEM(cell, 0) == Py_None) {
            Py_CLEAR(cells);
        } else {
            PyList_SET_ITEM(cells, i, Py_NewRef(cell));
        }
    }
    Py_XDECREF(saved);
    return cells;
}

/* Have a segment that sweeps one that has run be this thread's, which goes on recording in it: note which cells have entered it, and where sweeps go on
   from them.  1 if that is done, 0 if it is not done here, -1 where memory ended. */
static int
goes_on(Thread *thread, Segment *segment, Segment *from, PyObject *known)
{
    PyObject *places = PyObject_GetAttr(known, name_places), *slots = PyObject_GetAttr(known, name_slots), *ends = PyObject_GetAttr(known, name_ends);
    PyObject *limit = PyObject_GetAttr(told.growth, name_limit), *ref = PyWeakref_NewRef((PyObject *)segment, NULL), *generation = NULL;
    Py_ssize_t n = PyList_GET_SIZE(segment->leaves), given = PyList_GET_SIZE(from->leaves);
    long long turns = limit == NULL ? 0 : PyLong_AsLongLong(limit), then = 0;
    int done = slots != NULL && ends != NULL && ref != NULL && turns > 0 && PyTuple_GET_SIZE(slots) == n && PyTuple_GET_SIZE(ends) == n &&
               *own(segment->state, MODE) == PyTuple_GET_ITEM(thread->scope, 0);
    for (Py_ssize_t i = 0; done == 1 && i < n; i++) {
        PyObject *id = PyLong_FromVoidPtr(PyList_GET_ITEM(segment->leaves, i)), *slot = PyTuple_GET_ITEM(slots, i), *end = PyTuple_GET_ITEM(ends, i);
        PyObject *origin = NULL;
        if (end != Py_None && PyLong_AsSsize_t(PyTuple_GET_ITEM(places, i)) < given) {
            origin = Py_XNewRef(PyDict_GetItemWithError(from->origins, end));
        } else if (end != Py_None) {
            origin = PyTuple_Pack(2, (PyObject *)from, end);
            then = PyLong_AsLongLong(from->generation) + 1;
        }
        done = (end == Py_None) == (origin == NULL) && id != NULL && PyDict_SetItem(segment->entered, id, slot) == 0 &&
               (origin == NULL || PyDict_SetItem(segment->origins, slot, origin) == 0);
        Py_XDECREF(id);
        Py_XDECREF(origin);
    }
    done = done && PyDict_GET_SIZE(segment->entered) == n && (then == 0 || then % turns != 0) && (generation = PyLong_FromLongLong(then)) != NULL;
    if (done) {
        Py_SETREF(segment->generation, Py_NewRef(generation));
        Py_SETREF(thread->segment, Py_NewRef(ref));
    }
    PyObject *mine[] = {places, slots, ends, limit, ref, generation};
    clear_fields(mine, mine + sizeof mine / sizeof *mine);
    return PyErr_Occurred() ? -1 : done;
}

/* Let a segment go of all that it kept, where no sweep goes through it any more, as `forget` in tape/programs/retention.py does. */
static int
forgotten(Segment *segment)
{
    PyObject *leaves = PyList_New(0);
    if (leaves == NULL) {
        return -1;
    }
    PyObject *before[] = {segment->leaves, segment->run};
    segment->leaves = leaves;
    segment->run = Py_NewRef(runs.nothing);
    clear_fields(before, before + 2);
    return 0;
}

/* Tell whether no sweep comes to a segment that has run any more: no Variable holds a result, and no newer segment leads there. */
static int
unreached(Segment *segment)
{
    PyObject *dicts[] = {PyTuple_GET_ITEM(segment->run, 0), segment->ways}, *slot, *cell;
    for (int i = 0; i < 2; i++) {
        Py_ssize_t at = 0;
        if (dicts[i] == NULL || (dicts[i] != Py_None && !PyDict_CheckExact(dicts[i]))) {
            return 0;
        }
        while (dicts[i] != Py_None && PyDict_Next(dicts[i], &at, &slot, &cell)) {
            if (Py_REFCNT(cell) > 1) {
                return 0;
            }
        }
    }
    return 1;
}

/* Have a segment that was swept forget all, as trim in tape/programs/retention.py has it, where its structure is known to be spent, or nothing leads
   there; tell whether. */
static PyObject *
forgot(PyObject *Py_UNUSED(module), PyObject *swept)
{
    Segment *segment = (Segment *)swept;
    if (!is_a(swept, &Segment_type) || runs.run == NULL || !is_plain(segment) || PyTuple_GET_ITEM(segment->run, 3) != Py_None) {
        Py_RETURN_FALSE;
    }
    PyObject *run = segment->run, *released = segment->released, *key = PyTuple_Pack(2, name_spent, released);
    PyObject *spent = key == NULL ? NULL : PyDict_GetItemWithError(*own(segment->state, CACHE), key);
    int over = spent == Py_True;
    Py_XDECREF(key);
    if (!over && (PyErr_Occurred() || !unreached(segment))) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    }
    PyObject *got = PyObject_CallMethodOneArg(segment->lock, name_acquire, Py_False); /* another thread may look at it */
    int done = got == Py_True && segment->run == run && segment->released == released && (over || unreached(segment));
    int failed = got == NULL || (done && forgotten(segment) < 0);
    PyObject *gone = got == Py_True ? PyObject_CallMethodNoArgs(segment->lock, name_release) : Py_NewRef(Py_None);
    failed |= gone == NULL;
    Py_XDECREF(got);
    Py_XDECREF(gone);
    return failed ? NULL : PyBool_FromLong(done);
}

/* Do what backward() from one root of a segment that has run did before, as `backward` in tape/sweeps/differentiation.py does: what the sweep reads enters a
   segment of its own, which is where the sweep was written and runs, unless somebody waits to update all.  None; NULL without an exception where that is not done here: nothing has changed then. */
static PyObject *
swept_apart(PyObject *root)
{
    Thread *thread = runs.rules == NULL || runs.rules == Py_None || told.changes == NULL || begin.segment == NULL ? NULL : this_thread();
    Handle *handle = thread == NULL ? NULL : as_handle(root);
    if (handle == NULL || !is_a(handle->segment, &Segment_type) || !stands_alone(thread, (Segment *)handle->segment, root)) {
        return NULL;
    }
    Segment *from = (Segment *)Py_NewRef(handle->segment), *segment = NULL;
    if (PyObject_Size(runs.shared) > 0 || PyObject_Size(runs.heavy) > 0) { /* as in launch; this segment may be what is trimmed */
        PyObject *none = PyObject_CallNoArgs(runs.trim);
        Py_XDECREF(none);
        if (none == NULL || handle->segment != (PyObject *)from || !stands_alone(thread, from, root)) {
            Py_DECREF(from);
            return NULL;
        }
    }
    PyObject *run = Py_NewRef(from->run), *released = Py_NewRef(from->released), *slot = Py_NewRef(((Place *)handle->place)->slot), *done = NULL;
    PyObject *kept = NULL, *revision = NULL, *key = NULL, *known = NULL, *state = NULL, *places = NULL, *results = NULL, *after = NULL;
    PyObject *spent = NULL, *cells = NULL;
    Arrival arrival = {NULL};
    if ((kept = PySequence_Tuple(PyTuple_GET_ITEM(run, 0))) == NULL || (revision = PyObject_GetAttr(runs.rules, name_revision)) == NULL ||
        (key = PyTuple_Pack(5, name_look, kept, released, revision, slot)) == NULL ||
        (known = Py_XNewRef(PyDict_GetItemWithError(((State *)from->state)->next, key))) == NULL || (state = PyObject_GetAttr(known, name_state)) == NULL ||
        !is_a(state, &State_type) || (places = PyObject_GetAttr(known, name_places)) == NULL || !PyTuple_CheckExact(places) ||
        (results = PyObject_GetAttr(known, name_results)) == NULL || (after = PyObject_GetAttr(known, name_released)) == NULL ||
        (spent = PyObject_GetAttr(known, name_spent)) == NULL) {
        goto end;
    }
    for (int i = 0; i < 2; i++) { /* no transformation of JAX is running */
        PyObject *inside = PyObject_CallNoArgs(i ? told.axes_are_named : runs.in_trace);
        Py_XDECREF(inside);
        if (inside != Py_False) {
            goto end;
        }
    }
    if (from->run != run || (segment = new_segment(PyTuple_GET_ITEM(thread->outset, 0), from->configuration, state, from->scalars)) == NULL ||
        from->run != run || (cells = cells_read(from, places)) == NULL || !arrive(&arrival, segment, from, results) || arrival.sums) {
        goto end;
    }
    Py_SETREF(segment->leaves, Py_NewRef(cells));
    Py_SETREF(segment->cells, Py_NewRef(arrival.cells));
    if (from->run != run || from->released != released || !stands_alone(thread, from, root)) { /* memory was got above: finalizers may have run */
        goto end;
    }
    int waits = arrival.updater != NULL && arrival.updater != Py_None;
    if (waits && goes_on(thread, segment, from, known) != 1) {
        goto end;
    }
    from->released = Py_NewRef(after);
    Py_DECREF(released); /* held by the key */
    int ran = arrival.hooked ? 0 : waits ? 1 : launch_held(segment, name_backward);
    if (ran == 0) {
        done = PyObject_CallFunctionObjArgs(runs.finished, from, waits ? Py_None : (PyObject *)segment, released, arrival.fresh,
                                            arrival.hooked ? Py_True : Py_False, NULL);
        goto end;
    }
    done = ran == 1 ? assigned_all(arrival.fresh) : NULL;
    if (done == NULL) {
        unrelease(from, released);
    } else if (spent == Py_True && from->run == run ? forgotten(from) < 0 : 0) {
        Py_CLEAR(done);
    } else if (spent != Py_True) {
        PyObject *none = PyObject_CallOneArg(runs.trimmed, (PyObject *)from);
        Py_XDECREF(none);
        if (none == NULL) {
            Py_CLEAR(done);
        }
    }
end:
    free_arrival(&arrival);
    PyObject *mine[] = {(PyObject *)from, (PyObject *)segment, run, released, slot, kept, revision, key, known, state, places, results, after, spent, cells};
    clear_fields(mine, mine + sizeof mine / sizeof *mine);
    return done;
}

/* -- structures that were not met ------------------------------------------------------------------------------------------------------ */

static PyObject **
own(PyObject *state, int field)
{
    return (PyObject **)((char *)state + told.own[field]);
}

/* Have a table of places hold these from its n-th one on: itself, or, where it goes on otherwise there, a new list (a new reference).  Nothing of
   Python's runs meanwhile, and no other thread. */
static PyObject *
extended_table(PyObject *table, Py_ssize_t n, PyObject *places)
{
    PyObject *list = PyList_GET_SIZE(table) == n ? Py_NewRef(table) : PyList_GetSlice(table, 0, n);
    if (list != NULL && PyList_SetSlice(list, n, n, places) < 0) {
        Py_CLEAR(list);
    }
    return list;
}

static PyObject *
extended(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("extended", nargs, 3)) {
        return NULL;
    }
    Py_ssize_t n = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred() || !PyList_CheckExact(args[0]) || !PyTuple_CheckExact(args[2]) || n < 0 || n > PyList_GET_SIZE(args[0])) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "a table of places is a list, and what it is extended by a tuple");
        }
        return NULL;
    }
    return extended_table(args[0], n, args[2]);
}

#define NUMBERS 4096 /* slots and values whose tuples are shared: each entry has two or three such, which the collector of garbage would count */

/* Return the tuple of one number. */
static PyObject *
alone(Py_ssize_t number)
{
    static PyObject *known[NUMBERS];
    if (number >= 0 && number < NUMBERS && known[number] != NULL) {
        return Py_NewRef(known[number]);
    }
    PyObject *slot = PyLong_FromSsize_t(number), *made = slot == NULL ? NULL : PyTuple_Pack(1, slot);
    Py_XDECREF(slot);
    if (made != NULL && number >= 0 && number < NUMBERS) {
        known[number] = Py_NewRef(made);
    }
    return made;
}

static PyObject *
new_place(PyObject *slot, PyObject *kind, PyObject *made)
{
    PyTypeObject *type = (PyTypeObject *)(made == NULL ? told.plain_place : told.made_place);
    Place *place = (Place *)type->tp_alloc(type, 0);
    if (place != NULL) {
        place->slot = Py_NewRef(slot);
        place->kind = Py_NewRef(kind);
        if (made != NULL) {
            *(PyObject **)((char *)place + told.made) = Py_NewRef(made);
        }
        PyObject_GC_UnTrack(place); /* on no cycle: of so many the collector of garbage need not know */
    }
    return (PyObject *)place;
}

/* Give a state its number; where none of that number was met and there is room, note when it was, as _enter in tape/graph/trie.py has it. */
static int
note_meeting(PyObject *child, PyObject *key, PyObject *met, PyObject *now)
{
    PyObject *pair = PyTuple_Pack(2, *own(*own(child, PARENT), HASH), key);
    Py_hash_t hash = pair == NULL ? -1 : PyObject_Hash(pair);
    Py_XDECREF(pair);
    PyObject *number = hash == -1 ? NULL : PyLong_FromSsize_t(hash);
    int there = number == NULL ? -1 : PyDict_Contains(met, number);
    if (there == 0 && now != Py_None) {
        if (PyDict_SetItem(met, number, now) < 0) {
            there = -1;
        } else {
            Py_SETREF(*own(child, KNOWN), Py_NewRef(Py_False));
        }
    }
    if (number != NULL) {
        Py_SETREF(*own(child, HASH), number);
    }
    return there < 0 ? -1 : 0;
}

/* Make the state of an entry whose form is known (its kernel, the kinds of its results, whether these are unrecorded), as State.formed in
   tape/graph/trie.py has it, recorded at some line, or that of a leaf (which has no kernel), as State.leaf; where it was met before, it is not on
   the trie yet; on a tape of its own nobody notes that it was met. */
static PyObject *
formed(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("formed", nargs, 8)) {
        return NULL;
    }
    PyObject *parent = args[0], *op = args[1], *form = args[2], *inputs = args[3], *where = args[4], *key = args[5], *met = args[6], *now = args[7];
    if ((PyObject *)Py_TYPE(parent) != told.state || !PyTuple_CheckExact(form) || PyTuple_GET_SIZE(form) != 3 || !PyTuple_CheckExact(inputs) ||
        !PyTuple_CheckExact(PyTuple_GET_ITEM(form, 1)) || *own(parent, TABLE) == NULL || !PyList_CheckExact(*own(parent, TABLE))) {
        PyErr_SetString(PyExc_TypeError, "a state follows on a state, by a form, on slots");
        return NULL;
    }
    State *before = (State *)parent;
    PyObject *kernel = PyTuple_GET_ITEM(form, 0), *kinds = PyTuple_GET_ITEM(form, 1);
    PyObject *made = PyTuple_GET_ITEM(form, 2) != Py_True ? NULL : kernel == Py_None ? before->n_slots : where;
    Py_ssize_t n = PyLong_AsSsize_t(before->n_slots), depth = PyLong_AsSsize_t(before->depth), count = PyTuple_GET_SIZE(kinds);
    int leaf = kernel == Py_None, single = leaf || flag(kernel, name_single), once = is_alone(parent);
    if (PyErr_Occurred() || single < 0 || n < 0 || n > PyList_GET_SIZE(*own(parent, TABLE))) {
        return NULL;
    }
    PyTypeObject *type = (PyTypeObject *)told.state;
    State *child = (State *)type->tp_alloc(type, 0);
    PyObject *slots = count == 1 ? alone(n) : PyTuple_New(count), *places = PyTuple_New(count);
    int done = child != NULL && slots != NULL && places != NULL;
    for (Py_ssize_t i = 0; done && i < count; i++) {
        PyObject *slot = count == 1 ? PyTuple_GET_ITEM(slots, 0) : PyLong_FromSsize_t(n + i);
        PyObject *place = slot == NULL ? NULL : new_place(slot, PyTuple_GET_ITEM(kinds, i), made);
        done = place != NULL;
        if (slot != NULL && count != 1) {
            PyTuple_SET_ITEM(slots, i, slot);
        }
        if (place != NULL) {
            PyTuple_SET_ITEM(places, i, place);
        }
    }
    PyObject *table = done ? extended_table(*own(parent, TABLE), n, places) : NULL;
    if (table == NULL) {
        Py_XDECREF(child);
        Py_XDECREF(slots);
        Py_XDECREF(places);
        return NULL;
    }
    child->kernel = Py_NewRef(kernel);
    child->inputs = Py_NewRef(inputs);
    child->slots = slots;
    child->where = Py_NewRef(where);
    child->depth = PyLong_FromSsize_t(depth + !leaf);
    child->next = Py_NewRef(told.nowhere);
    child->n_slots = PyLong_FromSsize_t(n + count);
    child->place = Py_NewRef(single && count ? PyTuple_GET_ITEM(places, 0) : Py_None);
    child->several = Py_NewRef(Py_None);
    child->quick = Py_NewRef(single && count && !leaf ? Py_True : Py_False);
    child->latest = Py_NewRef(Py_None);
    PyObject *zero = PyLong_FromLong(0);
    PyObject *given[STATE_FIELDS] = {
        [BEFORE] = Py_None, [CACHE] = told.nowhere, [CUT] = *own(parent, CUT), [ENDS] = leaf ? Py_True : Py_False, [FULL] = Py_False, [HASH] = zero,
        [HAZARD] = Py_None, [KNOWN] = once ? Py_False : Py_True, [LENGTH] = once ? *own(parent, LENGTH) : Py_None, [LINES] = Py_None, [MODE] = *own(parent, MODE), [OP] = op,
        [PARENT] = parent, [PLACES] = places, [SEEN] = zero, [TABLE] = table, [USED] = zero};
    for (int i = 0; i < STATE_FIELDS; i++) {
        *own((PyObject *)child, i) = Py_XNewRef(given[i]);
    }
    Py_XDECREF(zero);
    Py_DECREF(places);
    Py_DECREF(table);
    if (!leaf && !once && (depth >= told.entries || n + count - depth - 1 > told.leaves)) {
        PyObject *filled = PyObject_CallMethodNoArgs((PyObject *)child, name_fill);
        if (filled != NULL && *own((PyObject *)child, FULL) == Py_True) {
            Py_SETREF(child->quick, Py_NewRef(Py_False));
        }
        Py_XDECREF(filled);
    }
    if (!single && *own((PyObject *)child, FULL) == Py_False && !PyErr_Occurred()) {
        PyObject *container = PyObject_GetAttr(kernel, name_several), *visible = container == NULL ? NULL : PyObject_GetAttr(kernel, name_visible);
        Py_ssize_t shown = visible == NULL ? -1 : PyLong_AsSsize_t(visible);
        PyObject *first = shown < 0 ? NULL : PyTuple_GetSlice(places, 0, shown);
        if (first != NULL && container != Py_None) {
            Py_XSETREF(child->several, PyTuple_Pack(2, container, first));
        }
        Py_XDECREF(first);
        Py_XDECREF(visible);
        Py_XDECREF(container);
    }
    if (PyErr_Occurred() || child->depth == NULL || child->n_slots == NULL || zero == NULL || (!once && note_meeting((PyObject *)child, key, met, now) < 0)) {
        Py_CLEAR(child);
    }
    return (PyObject *)child;
}

#define LATEST 256 /* lines that were met last, whose tuples are shared */

/* Return a file and a line of it. */
static PyObject *
line_in(PyObject *file, int line)
{
    static struct {
        PyObject *file, *pair;
        int line;
    } latest[LATEST];
    Py_ssize_t at = (unsigned int)line % LATEST;
    if (latest[at].file == file && latest[at].line == line && file != NULL) {
        return Py_NewRef(latest[at].pair);
    }
    PyObject *pair = Py_BuildValue("Oi", file, line), *before = latest[at].pair;
    if (pair != NULL) { /* which holds the file */
        latest[at].file = file;
        latest[at].line = line;
        latest[at].pair = Py_NewRef(pair);
        Py_XDECREF(before);
    }
    return pair;
}

static struct { /* what Python told of calls of tape.jit (stepping), and by what these read most places */
    PyObject *lock, *hooks, *configuration, *error, *item, *length, *get, *attribute;
} steps;

/* Return get(at, key), by which calls of tape.jit look at a place: at once where it is a common one. */
static PyObject *
looked_up(PyObject *get, PyObject *at, PyObject *key)
{
    PyObject *value = NULL;
    if (get == steps.item && PyDict_CheckExact(at)) {
        value = PyDict_GetItemWithError(at, key);
    } else if (get == steps.item && PyList_CheckExact(at) && PyLong_CheckExact(key)) {
        value = picked(at, key);
    } else if (get == steps.get && PyDict_CheckExact(at)) {
        value = PyDict_GetItemWithError(at, key);
        value = value == NULL && !PyErr_Occurred() ? Py_None : value;
    } else if (get == steps.length && PyDict_CheckExact(at)) {
        return PyLong_FromSsize_t(PyDict_GET_SIZE(at));
    } else if (get == steps.length && PyList_CheckExact(at)) {
        return PyLong_FromSsize_t(PyList_GET_SIZE(at));
    } else if (get == steps.length && PyAnySet_CheckExact(at)) {
        return PyLong_FromSsize_t(PySet_GET_SIZE(at));
    } else if (get == steps.attribute && PyCell_Check(at) && key == name_contents) {
        value = PyCell_GET(at);
    }
    if (value != NULL || PyErr_Occurred()) {
        return Py_XNewRef(value);
    }
    PyObject *read[] = {at, key};
    return PyObject_Vectorcall(get, read, 2, NULL);
}

/* Tell whether an edge leads to what it led to, or what stands there now will do as well, as _leads_on in tape/jitting/replaced.py. */
static PyObject *
leads_on(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("leads_on", nargs, 2)) {
        return NULL;
    }
    PyObject *edge = args[0], *other = args[1];
    if (!PyTuple_Check(edge) || PyTuple_GET_SIZE(edge) != 6 || !PyTuple_CheckExact(other) || PyTuple_GET_SIZE(other) != 2) {
        PyErr_SetString(PyExc_TypeError, "an edge is a tuple of six, and who tells whether something else will do is one of two");
        return NULL;
    }
    PyObject *before = PyTuple_GET_ITEM(edge, 5);
    PyObject *now = looked_up(PyTuple_GET_ITEM(edge, 0), PyTuple_GET_ITEM(edge, 1), PyTuple_GET_ITEM(edge, 2));
    if (now == NULL || now == before) {
        Py_XDECREF(now);
        return now == NULL ? NULL : Py_NewRef(Py_True);
    }
    PyObject *asked[] = {now, before, PyTuple_GET_ITEM(other, 1)}, *answer = PyObject_Vectorcall(PyTuple_GET_ITEM(other, 0), asked, 3, NULL);
    Py_DECREF(now);
    return answer;
}

/* Tell whether what is read at the key of a place is one of some containers, and empty, as _is_empty_in in tape/jitting/surroundings.py. */
static PyObject *
is_empty_in(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("is_empty_in", nargs, 2)) {
        return NULL;
    }
    if (!PyTuple_Check(args[0]) || PyTuple_GET_SIZE(args[0]) != 2 || !PyTuple_Check(args[1]) || PyTuple_GET_SIZE(args[1]) != 2) {
        PyErr_SetString(PyExc_TypeError, "what reads a place and that place are a tuple, and so are a key and the classes of containers");
        return NULL;
    }
    PyObject *value = looked_up(PyTuple_GET_ITEM(args[0], 0), PyTuple_GET_ITEM(args[0], 1), PyTuple_GET_ITEM(args[1], 0));
    int contains = value == NULL ? -1 : PyObject_IsInstance(value, PyTuple_GET_ITEM(args[1], 1));
    Py_ssize_t size = contains == 1 ? PyObject_Size(value) : contains;
    Py_XDECREF(value);
    return size < 0 ? NULL : PyBool_FromLong(contains && size == 0);
}

/* Tell whether what is read at some keys of a place is of the classes that are told, as _all_of_kinds in tape/jitting/flags.py. */
static PyObject *
are_of_kinds(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("are_of_kinds", nargs, 2)) {
        return NULL;
    }
    if (!PyTuple_Check(args[0]) || PyTuple_GET_SIZE(args[0]) != 2 || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "what reads a place and that place are a tuple, and so are keys with their classes");
        return NULL;
    }
    PyObject *get = PyTuple_GET_ITEM(args[0], 0), *at = PyTuple_GET_ITEM(args[0], 1);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[1]); i++) {
        PyObject *pair = PyTuple_GET_ITEM(args[1], i);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
            PyErr_SetString(PyExc_TypeError, "a key and a class are a tuple");
            return NULL;
        }
        PyObject *value = looked_up(get, at, PyTuple_GET_ITEM(pair, 0));
        if (value == NULL) {
            return NULL;
        }
        int same = (PyObject *)Py_TYPE(value) == PyTuple_GET_ITEM(pair, 1);
        Py_DECREF(value);
        if (!same) {
            Py_RETURN_FALSE;
        }
    }
    Py_RETURN_TRUE;
}

/* Tell whether objects are of the classes that are told, and dicts hold nothing under some names, as _are_all_alike in tape/jitting/classes.py. */
static PyObject *
are_alike(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("are_alike", nargs, 2)) {
        return NULL;
    }
    for (Py_ssize_t i = 0; PyTuple_Check(args[0]) && i < PyTuple_GET_SIZE(args[0]); i++) {
        PyObject *row = PyTuple_GET_ITEM(args[0], i), *own, *names;
        if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != 4 || !PyDict_Check(own = PyTuple_GET_ITEM(row, 2)) ||
            !PyTuple_Check(names = PyTuple_GET_ITEM(row, 3))) {
            PyErr_SetString(PyExc_TypeError, "an object, a class, a dict and names are a tuple");
            return NULL;
        }
        if ((PyObject *)Py_TYPE(PyTuple_GET_ITEM(row, 0)) != PyTuple_GET_ITEM(row, 1)) {
            Py_RETURN_FALSE;
        }
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(names); k++) {
            int there = PyDict_Contains(own, PyTuple_GET_ITEM(names, k));
            if (there < 0) {
                return NULL;
            }
            if (there) {
                Py_RETURN_FALSE;
            }
        }
    }
    Py_RETURN_TRUE;
}

/* Return the file and line of the innermost frame outside the library, as user_line in tape/graph/lines.py has it, where `foreign` knows the files of
   all frames on the way, and none of their codes is among those that record for `others`; None where that is not so. */
static PyObject *
line_outside(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("line_outside", nargs, 2)) {
        return NULL;
    }
    if (!PyDict_Check(args[0]) || !PySet_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "files are in a dict, and codes in a set");
        return NULL;
    }
    PyObject *found = NULL;
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame != NULL && found == NULL) {
        PyObject *code = (PyObject *)PyFrame_GetCode(frame), *file = PyObject_GetAttr(code, name_filename);
        PyObject *foreign = file == NULL ? NULL : PyDict_GetItemWithError(args[0], file);
        int other = foreign == NULL ? 1 : foreign == Py_True ? 0 : PySet_Contains(args[1], code);
        if (foreign == Py_True) {
            found = line_in(file, PyFrame_GetLineNumber(frame));
        }
        Py_XDECREF(file);
        Py_DECREF(code);
        if (other || (foreign == Py_True && found == NULL)) {
            break;
        }
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return found != NULL || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

/* Return the entries that slots depend on, in order, and add all slots that they read to these, as needed in tape/graph/wengert.py has it for lines of
   a tape; None where there are others among them.  With a list of `leaves`, lines without a kernel are left out, and the slots of all of these added to
   it, as needed_entries in tape/programs/interpretation.py has it. */
static PyObject *
needed(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("needed", nargs, nargs == 3 ? 3 : 2)) {
        return NULL;
    }
    PyObject *entries = args[0], *reached = args[1], *leaves = nargs == 3 ? args[2] : NULL;
    if (!PyList_CheckExact(entries) || !PySet_Check(reached) || (leaves != NULL && !PyList_CheckExact(leaves))) {
        Py_RETURN_NONE;
    }
    Py_ssize_t n = PyList_GET_SIZE(entries);
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!is_a(PyList_GET_ITEM(entries, i), &Step_type) && !is_a(PyList_GET_ITEM(entries, i), &State_type)) {
            Py_RETURN_NONE;
        }
    }
    PyObject *before = PyList_New(0);
    for (Py_ssize_t i = n - 1; before != NULL && i >= 0 && i < PyList_GET_SIZE(entries); i--) {
        Step *step = (Step *)PyList_GET_ITEM(entries, i);
        int meets = 0, leaf = leaves != NULL && step->kernel == Py_None;
        for (Py_ssize_t j = PyTuple_GET_SIZE(step->slots) - 1; leaf && meets == 0 && j >= 0; j--) {
            meets = PyList_Append(leaves, PyTuple_GET_ITEM(step->slots, j));
        }
        for (Py_ssize_t j = 0; !leaf && meets == 0 && j < PyTuple_GET_SIZE(step->slots); j++) {
            meets = PySet_Contains(reached, PyTuple_GET_ITEM(step->slots, j));
        }
        for (Py_ssize_t j = 0; meets > 0 && j < PyTuple_GET_SIZE(step->inputs); j++) {
            meets = PySet_Add(reached, PyTuple_GET_ITEM(step->inputs, j)) < 0 ? -1 : meets;
        }
        if (meets < 0 || (meets > 0 && PyList_Append(before, (PyObject *)step) < 0)) {
            Py_CLEAR(before);
        }
    }
    if (before != NULL && (PyList_Reverse(before) < 0 || (leaves != NULL && PyList_Reverse(leaves) < 0))) {
        Py_CLEAR(before);
    }
    return before;
}

/* Return the entries that sweeps from the slots that are `reached` go through, last to first, and add those that they come to, as _through in
   tape/programs/retention.py has it. */
static PyObject *
through(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("through", nargs, 5)) {
        return NULL;
    }
    PyObject *path = args[0], *reached = args[1], *table = args[2], *cut = args[3], *released = args[4];
    if (!PyList_CheckExact(path) || !PySet_Check(reached) || !PyList_CheckExact(table) || !PyFrozenSet_Check(cut) || !PyFrozenSet_Check(released)) {
        PyErr_SetString(PyExc_TypeError, "a path and its table are lists, and slots in sets");
        return NULL;
    }
    PyObject *passed = PyList_New(0);
    for (Py_ssize_t i = PyList_GET_SIZE(path) - 1; passed != NULL && i >= 0; i--) {
        Step *step = (Step *)PyList_GET_ITEM(path, i);
        int state = is_a(step, &State_type), meets = 0;
        if ((!state && !is_a(step, &Step_type)) || !PyTuple_CheckExact(step->slots) || !PyTuple_CheckExact(step->inputs)) {
            PyErr_SetString(PyExc_TypeError, "a path is of states and steps");
            meets = -1;
        }
        for (Py_ssize_t j = 0; meets == 0 && j < PyTuple_GET_SIZE(step->slots); j++) {
            meets = PySet_Contains(reached, PyTuple_GET_ITEM(step->slots, j));
        }
        if (meets > 0) {
            int over = state && *own((PyObject *)step, ENDS) != Py_False ? 1 : PySet_Contains(released, step->depth);
            meets = over < 0 ? -1 : !over;
        }
        for (Py_ssize_t j = 0; meets > 0 && j < PyTuple_GET_SIZE(step->inputs); j++) {
            PyObject *slot = PyTuple_GET_ITEM(step->inputs, j);
            Py_ssize_t at = PyLong_AsSsize_t(slot);
            Place *place = at < 0 || at >= PyList_GET_SIZE(table) ? NULL : (Place *)PyList_GET_ITEM(table, at);
            if (place == NULL || !is_a(place, &Place_type) || !is_a(place->kind, &Kind_type)) {
                PyErr_SetString(PyExc_IndexError, "a slot that its table does not know");
                meets = -1;
            } else if (((Kind *)place->kind)->requires_grad == Py_True) {
                int cuts = PySet_Contains(cut, slot);
                meets = cuts < 0 || (cuts == 0 && PySet_Add(reached, slot) < 0) ? -1 : 1;
            }
        }
        if (meets < 0 || (meets > 0 && PyList_Append(passed, (PyObject *)step) < 0)) {
            Py_CLEAR(passed);
        }
    }
    return passed;
}

/* Run entries from the number `first` on as long as NumPy runs them (their kernels are light) on `values` by slot, to which their results are added,
   as _ran in tape/programs/interpretation.py has it; return the number of the first one that did not run. */
static PyObject *
ran(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("ran", nargs, 3)) {
        return NULL;
    }
    PyObject *entries = args[0], *values = args[2], *given[MOST];
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred() || !PyList_CheckExact(entries) || !PyDict_CheckExact(values) || at < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "entries are in a list, and values in a dict");
        }
        return NULL;
    }
    for (; at < PyList_GET_SIZE(entries); at++) {
        Step *step = (Step *)PyList_GET_ITEM(entries, at);
        if ((!is_a(step, &Step_type) && !is_a(step, &State_type)) || step->kernel == NULL || step->inputs == NULL || step->slots == NULL ||
            !PyTuple_CheckExact(step->inputs) || !PyTuple_CheckExact(step->slots) || PyTuple_GET_SIZE(step->inputs) > MOST) {
            break;
        }
        Py_INCREF(step);
        PyObject *light = PyObject_GetAttr(step->kernel, name_light), *host = light == Py_True ? PyObject_GetAttr(step->kernel, name_host) : NULL;
        Py_ssize_t n = PyTuple_GET_SIZE(step->inputs), count = PyTuple_GET_SIZE(step->slots), read = 0;
        for (; host != NULL && read < n; read++) {
            given[read] = Py_XNewRef(PyDict_GetItemWithError(values, PyTuple_GET_ITEM(step->inputs, read)));
            if (given[read] == NULL) {
                break;
            }
        }
        PyObject *results = host != NULL && read == n ? PyObject_Vectorcall(host, given, n, NULL) : NULL;
        int stored = results != NULL && count == 1 && PyDict_SetItem(values, PyTuple_GET_ITEM(step->slots, 0), results) == 0;
        if (results != NULL && count != 1) {
            PyObject *each = PySequence_Tuple(results);
            stored = each != NULL && PyTuple_GET_SIZE(each) == count;
            for (Py_ssize_t i = 0; stored && i < count; i++) {
                stored = PyDict_SetItem(values, PyTuple_GET_ITEM(step->slots, i), PyTuple_GET_ITEM(each, i)) == 0;
            }
            Py_XDECREF(each);
        }
        clear_fields(given, given + read);
        Py_XDECREF(results);
        Py_XDECREF(host);
        Py_XDECREF(light);
        Py_DECREF(step);
        if (!stored) {
            break;
        }
    }
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return NULL;
        }
        PyErr_Clear(); /* it is run again, in Python, which says what was wrong */
    }
    return PyLong_FromSsize_t(at);
}

/* -- plans of sweeps -------------------------------------------------------------------------------------------------------------------- */

typedef struct { /* what a plan is worked out with; all of it belongs to who called */
    PyObject *totals, *active, *shown, *instruction, *add, *special, *revision, *settings, *steps, *passed;
    int fused;
    long long count; /* values so far */
} Sweeping;

/* Return the next numbers of values. */
static PyObject *
numbered(Sweeping *sweep, Py_ssize_t n)
{
    PyObject *numbers = n == 1 ? alone((Py_ssize_t)sweep->count) : PyTuple_New(n);
    for (Py_ssize_t i = 0; numbers != NULL && n != 1 && i < n; i++) {
        PyObject *number = PyLong_FromLongLong(sweep->count + i);
        if (number == NULL) {
            Py_CLEAR(numbers);
        } else {
            PyTuple_SET_ITEM(numbers, i, number);
        }
    }
    sweep->count += numbers == NULL ? 0 : n;
    return numbers;
}

/* Write an instruction, as Instruction in tape/sweeps/plan.py has it: 0, or -1 with an exception. */
static int
instruct(Sweeping *sweep, PyObject *op, PyObject *operands, PyObject *results, Step *entry)
{
    PyObject *none = PyTuple_New(0);
    PyObject *fields = none == NULL ? NULL : PyTuple_Pack(9, op, operands, results, entry->where, Py_None, Py_None, Py_None, none, entry->depth);
    PyObject *args = fields == NULL ? NULL : PyTuple_Pack(1, fields);
    PyObject *made = args == NULL ? NULL : PyTuple_Type.tp_new((PyTypeObject *)sweep->instruction, args, NULL);
    int failed = made == NULL || PyList_Append(sweep->steps, made) < 0 ? -1 : 0;
    Py_XDECREF(none);
    Py_XDECREF(fields);
    Py_XDECREF(args);
    Py_XDECREF(made);
    return failed;
}

/* Take a cotangent out of the totals (a new reference, None where there is none). */
static PyObject *
taken(PyObject *totals, PyObject *slot)
{
    PyObject *total = PyDict_GetItemWithError(totals, slot);
    if (total == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    Py_INCREF(total);
    if (PyDict_DelItem(totals, slot) < 0) {
        Py_CLEAR(total);
    }
    return total;
}

/* Return which inputs have a sum of cotangents already, and for each the first one that is the same value, as Kernel.vjp_call has it; () where there are
   none. */
static int
summed_up(Sweeping *sweep, PyObject *inputs, PyObject **adding, PyObject **same)
{
    Py_ssize_t n = PyTuple_GET_SIZE(inputs);
    int adds = 0, repeats = 0;
    *adding = *same = NULL;
    for (Py_ssize_t i = 0; i < n && sweep->fused; i++) {
        int there = PyDict_Contains(sweep->totals, PyTuple_GET_ITEM(inputs, i));
        if (there < 0) {
            return -1;
        }
        adds |= there;
        for (Py_ssize_t j = 0; j < i; j++) {
            repeats |= PyObject_RichCompareBool(PyTuple_GET_ITEM(inputs, i), PyTuple_GET_ITEM(inputs, j), Py_EQ) == 1;
        }
    }
    *adding = PyTuple_New(adds ? n : 0);
    *same = PyTuple_New(repeats ? n : 0);
    for (Py_ssize_t i = 0; *adding != NULL && *same != NULL && i < n && (adds || repeats); i++) {
        PyObject *slot = PyTuple_GET_ITEM(inputs, i);
        Py_ssize_t first = 0;
        while (first < i && PyObject_RichCompareBool(PyTuple_GET_ITEM(inputs, first), slot, Py_EQ) != 1) {
            first++;
        }
        if (repeats) {
            PyObject *number = PyLong_FromSsize_t(first);
            if (number == NULL) {
                break;
            }
            PyTuple_SET_ITEM(*same, i, number);
        }
        if (adds) {
            PyTuple_SET_ITEM(*adding, i, Py_NewRef(first == i && PyDict_Contains(sweep->totals, slot) == 1 ? Py_True : Py_False));
        }
    }
    return PyErr_Occurred() || *adding == NULL || *same == NULL ? -1 : 0;
}

/* Write the VJP of an entry whose results have these cotangents (a list), and add what it gives to the totals: 0, or -1 with an exception. */
static int
pull_back(Sweeping *sweep, Step *entry, PyObject *cotangents, PyObject *wanted)
{
    PyObject *kernel = entry->kernel, *inputs = entry->inputs, *slots = entry->slots, *adding = NULL, *same = NULL, *present = NULL, *key = NULL;
    PyObject *cache = NULL, *vjp = NULL, *values = NULL, *operands = NULL, *results = NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(inputs), m = PyList_GET_SIZE(cotangents);
    int failed = -1;
    if (PySet_Add(sweep->passed, entry->depth) < 0 || summed_up(sweep, inputs, &adding, &same) < 0 || (present = PyTuple_New(m)) == NULL) {
        goto end;
    }
    for (Py_ssize_t i = 0; i < m; i++) {
        PyTuple_SET_ITEM(present, i, Py_NewRef(m == 1 || PyList_GET_ITEM(cotangents, i) != Py_None ? Py_True : Py_False));
    }
    if ((key = PyTuple_Pack(6, present, wanted, adding, same, sweep->revision, sweep->settings)) == NULL ||
        (cache = PyObject_GetAttr(kernel, name_cache)) == NULL || !PyDict_Check(cache)) {
        goto end;
    }
    vjp = Py_XNewRef(PyDict_GetItemWithError(cache, key));
    if (vjp == NULL && !PyErr_Occurred()) {
        vjp = PyObject_CallMethodObjArgs(kernel, name_vjp, present, wanted, adding, same, NULL);
    }
    if (vjp == NULL || !PyTuple_Check(vjp) || PyTuple_GET_SIZE(vjp) != 3) {
        goto end;
    }
    PyObject *sources = PyTuple_GET_ITEM(vjp, 1), *targets = PyTuple_GET_ITEM(vjp, 2);
    if (!PyTuple_CheckExact(sources) || !PyTuple_CheckExact(targets) || (values = PyList_New(0)) == NULL) {
        goto end;
    }
    int grown = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        grown |= PyList_Append(values, PyTuple_GET_ITEM(inputs, i));
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(slots); i++) {
        grown |= PyList_Append(values, PyTuple_GET_ITEM(slots, i));
    }
    for (Py_ssize_t i = 0; i < m; i++) {
        grown |= PyList_GET_ITEM(cotangents, i) == Py_None ? 0 : PyList_Append(values, PyList_GET_ITEM(cotangents, i));
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(adding); i++) {
        PyObject *total = PyTuple_GET_ITEM(adding, i) == Py_True ? PyDict_GetItemWithError(sweep->totals, PyTuple_GET_ITEM(inputs, i)) : NULL;
        grown |= total == NULL ? 0 : PyList_Append(values, total);
    }
    if (grown || (operands = PyTuple_New(PyTuple_GET_SIZE(sources))) == NULL) {
        goto end;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sources); i++) {
        Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(sources, i));
        if (PyErr_Occurred() || at < 0 || at >= PyList_GET_SIZE(values)) {
            goto end;
        }
        PyTuple_SET_ITEM(operands, i, Py_NewRef(PyList_GET_ITEM(values, at)));
    }
    Py_ssize_t ends = PyTuple_GET_SIZE(targets);
    if (PyTuple_GET_ITEM(vjp, 0) == Py_None) {
        results = Py_NewRef(operands);
    } else if ((results = numbered(sweep, ends)) == NULL || instruct(sweep, PyTuple_GET_ITEM(vjp, 0), operands, results, entry) < 0) {
        goto end;
    }
    if (PyTuple_GET_SIZE(results) != ends) {
        goto end;
    }
    for (Py_ssize_t i = 0; i < ends; i++) {
        Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(targets, i));
        if (PyErr_Occurred() || at < 0 || at >= n) {
            goto end;
        }
        PyObject *gone = PyTuple_GET_SIZE(adding) ? taken(sweep->totals, PyTuple_GET_ITEM(inputs, at)) : Py_NewRef(Py_None); /* it was added to */
        if (gone == NULL) {
            goto end;
        }
        Py_DECREF(gone);
    }
    for (Py_ssize_t i = 0; i < ends; i++) {
        PyObject *slot = PyTuple_GET_ITEM(inputs, PyLong_AsSsize_t(PyTuple_GET_ITEM(targets, i))), *term = PyTuple_GET_ITEM(results, i);
        PyObject *total = PyDict_GetItemWithError(sweep->totals, slot), *both = NULL, *sum = NULL;
        if (total == NULL) {
            if (PyErr_Occurred() || PyDict_SetItem(sweep->totals, slot, term) < 0) {
                goto end;
            }
            continue;
        }
        int added = (both = PyTuple_Pack(2, total, term)) != NULL && (sum = numbered(sweep, 1)) != NULL &&
                    instruct(sweep, sweep->add, both, sum, entry) == 0 && PyDict_SetItem(sweep->totals, slot, PyTuple_GET_ITEM(sum, 0)) == 0;
        Py_XDECREF(both);
        Py_XDECREF(sum);
        if (!added) {
            goto end;
        }
    }
    failed = 0;
end:
    if (failed && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "a VJP is a kernel, where its inputs come from, and where its outputs go");
    }
    PyObject *mine[] = {adding, same, present, key, cache, vjp, values, operands, results};
    clear_fields(mine, mine + sizeof mine / sizeof *mine);
    return failed;
}

/* Tell whether an entry is one whose sweep is its VJP and nothing else: it ends nothing, nobody sees its cotangents, and its inputs have derivatives. */
static int
plainly(Sweeping *sweep, PyObject *entry)
{
    if ((PyObject *)Py_TYPE(entry) == told.step) {
        return 1;
    }
    if ((PyObject *)Py_TYPE(entry) != told.state) {
        return 0;
    }
    PyObject *op = *own(entry, OP);
    return *own(entry, ENDS) == Py_False && *own(entry, HAZARD) == Py_None && (op == NULL || (PyObject *)Py_TYPE(op) != sweep->special);
}

/* Sweep back through entries as far as that is nothing but their VJPs, from the `first` one down, as sweep in tape/graph/wengert.py has it for the
   planner in tape/sweeps/plan.py: return the position of the entry that is left to Python (-1: none) and how many values there are. */
static PyObject *
planned(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *entries, *cotangents = NULL, *wanted = NULL, *result = NULL;
    Py_ssize_t at;
    Sweeping sweep;
    if (!PyArg_ParseTuple(args, "O!nO!O!O!O!OO!OOO!O!pL", &PyList_Type, &entries, &at, &PyDict_Type, &sweep.totals, &PyFrozenSet_Type, &sweep.active,
                          &PyFrozenSet_Type, &sweep.shown, &PyType_Type, &sweep.instruction, &sweep.add, &PyType_Type, &sweep.special, &sweep.revision,
                          &sweep.settings, &PyList_Type, &sweep.steps, &PySet_Type, &sweep.passed, &sweep.fused, &sweep.count)) {
        return NULL;
    }
    for (; at >= 0 && at < PyList_GET_SIZE(entries); at--) {
        PyObject *entry = PyList_GET_ITEM(entries, at); /* `entries` belongs to who called, and stays */
        if (!is_a(entry, &Step_type) && !is_a(entry, &State_type)) {
            PyErr_SetString(PyExc_TypeError, "an entry is a step");
            goto end;
        }
        Step *step = (Step *)entry;
        PyObject *slots = step->slots;
        Py_ssize_t n = PyTuple_GET_SIZE(slots);
        int reached = 0, seen = 0;
        for (Py_ssize_t i = 0; i < n; i++) {
            reached |= PyDict_Contains(sweep.totals, PyTuple_GET_ITEM(slots, i));
            seen |= PySet_GET_SIZE(sweep.shown) ? PySet_Contains(sweep.shown, PyTuple_GET_ITEM(slots, i)) : 0;
        }
        if (reached < 0 || seen < 0) {
            goto end;
        }
        if (!reached) {
            continue;
        }
        if (seen || !plainly(&sweep, entry)) {
            break;
        }
        Py_ssize_t inputs = PyTuple_GET_SIZE(step->inputs);
        int some = 0;
        if ((cotangents = PyList_New(n)) == NULL || (wanted = PyTuple_New(inputs)) == NULL) {
            goto end;
        }
        for (Py_ssize_t i = 0; i < n; i++) {
            PyObject *cotangent = taken(sweep.totals, PyTuple_GET_ITEM(slots, i));
            if (cotangent == NULL) {
                goto end;
            }
            PyList_SET_ITEM(cotangents, i, cotangent);
        }
        for (Py_ssize_t i = 0; i < inputs; i++) {
            int flows = PySet_Contains(sweep.active, PyTuple_GET_ITEM(step->inputs, i));
            if (flows < 0) {
                goto end;
            }
            some |= flows;
            PyTuple_SET_ITEM(wanted, i, Py_NewRef(flows ? Py_True : Py_False));
        }
        if (some && pull_back(&sweep, step, cotangents, wanted) < 0) {
            goto end;
        }
        Py_CLEAR(cotangents);
        Py_CLEAR(wanted);
    }
    result = Py_BuildValue("nL", at, sweep.count);
end:
    Py_XDECREF(cotangents);
    Py_XDECREF(wanted);
    return result;
}

/* Make the lines of a sweep from its instructions, as tape/graph/writing.py has it: extend `table` by the places of their results and
   `slots` by the slots of their values; return the lines. */
static PyObject *
written_lines(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("written_lines", nargs, 7)) {
        return NULL;
    }
    PyObject *instructions = args[0], *numbers = args[1], *table = args[2], *depth = args[3], *made = args[4], *plain = args[5], *unrecorded = args[6];
    if (!PyList_CheckExact(instructions) || !PyDict_CheckExact(numbers) || !PyList_CheckExact(table)) {
        PyErr_SetString(PyExc_TypeError, "instructions are in a list, as places are, and slots in a dict");
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(instructions);
    PyObject *lines = PyTuple_New(count);
    for (Py_ssize_t i = 0; lines != NULL && i < count; i++) {
        PyObject *instruction = i < PyList_GET_SIZE(instructions) ? PyList_GET_ITEM(instructions, i) : NULL;
        PyObject *inputs = NULL, *kinds = NULL, *slots = NULL, *kernel = NULL, *line = NULL, *op, *operands, *results;
        if (instruction == NULL || !PyTuple_Check(instruction) || PyTuple_GET_SIZE(instruction) < 4 || !PyTuple_CheckExact(PyTuple_GET_ITEM(instruction, 1)) ||
            !PyTuple_CheckExact(PyTuple_GET_ITEM(instruction, 2))) {
            PyErr_SetString(PyExc_TypeError, "an instruction is an op, operands, results and a line");
            goto next;
        }
        op = PyTuple_GET_ITEM(instruction, 0);
        operands = PyTuple_GET_ITEM(instruction, 1);
        results = PyTuple_GET_ITEM(instruction, 2);
        Py_ssize_t n = PyTuple_GET_SIZE(operands);
        int flows = 0;
        if ((inputs = PyTuple_New(n)) == NULL) {
            goto next;
        }
        for (Py_ssize_t j = 0; j < n; j++) {
            PyObject *operand = PyTuple_GET_ITEM(operands, j), *slot = PyDict_GetItemWithError(numbers, operand);
            PyTuple_SET_ITEM(inputs, j, Py_NewRef(slot == NULL ? operand : slot));
            Py_ssize_t at = PyErr_Occurred() ? -1 : PyLong_AsSsize_t(PyTuple_GET_ITEM(inputs, j));
            Place *place = at < 0 || at >= PyList_GET_SIZE(table) ? NULL : (Place *)PyList_GET_ITEM(table, at);
            Kind *kind = place == NULL || !is_a((PyObject *)place, &Place_type) ? NULL : (Kind *)place->kind;
            if (kind == NULL || !is_a((PyObject *)kind, &Kind_type)) {
                if (!PyErr_Occurred()) {
                    PyErr_SetString(PyExc_IndexError, "an operand that is no value of the tape");
                }
                goto next;
            }
            if (!flows) {
                int set = kind->requires_grad == Py_True ? 1 : PyObject_IsTrue(kind->unrecorded);
                if (set < 0) {
                    goto next;
                }
                flows = set;
            }
        }
        PyObject *known = PyObject_GetAttr(op, name_own_kinds); /* those of a kernel by role */
        kernel = known == NULL ? NULL : Py_NewRef(op);
        if (known == NULL) { /* an op */
            PyErr_Clear();
            PyObject *given = PyTuple_New(n);
            for (Py_ssize_t j = 0; given != NULL && j < n; j++) {
                PyTuple_SET_ITEM(given, j, Py_NewRef(((Place *)PyList_GET_ITEM(table, PyLong_AsSsize_t(PyTuple_GET_ITEM(inputs, j))))->kind));
            }
            kernel = given == NULL ? NULL : PyObject_CallMethodObjArgs(op, name_kernel_of, given, NULL);
            Py_XDECREF(given);
            known = kernel == NULL ? NULL : PyObject_GetAttr(kernel, name_own_kinds);
        }
        if (known != NULL && PyDict_Check(known)) {
            kinds = Py_XNewRef(PyDict_GetItemWithError(known, flows ? unrecorded : plain));
            if (kinds == NULL && !PyErr_Occurred()) {
                kinds = PyObject_CallMethodObjArgs(kernel, name_kinds, flows ? unrecorded : plain, NULL);
            }
        }
        Py_XDECREF(known);
        if (kinds == NULL || !PyTuple_CheckExact(kinds) || PyTuple_GET_SIZE(kinds) != PyTuple_GET_SIZE(results) ||
            (slots = PyTuple_GET_SIZE(kinds) == 1 ? alone(PyList_GET_SIZE(table)) : PyTuple_New(PyTuple_GET_SIZE(kinds))) == NULL) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "the results of an instruction are those of its kernel");
            }
            goto next;
        }
        for (Py_ssize_t j = 0, one = PyTuple_GET_SIZE(kinds) == 1; j < PyTuple_GET_SIZE(kinds); j++) {
            PyObject *slot = one ? PyTuple_GET_ITEM(slots, 0) : PyLong_FromSsize_t(PyList_GET_SIZE(table)), *place = NULL;
            int failed = slot == NULL || (place = new_place(slot, PyTuple_GET_ITEM(kinds, j), flows ? made : NULL)) == NULL ||
                         PyList_Append(table, place) < 0 || PyDict_SetItem(numbers, PyTuple_GET_ITEM(results, j), slot) < 0;
            Py_XDECREF(place);
            if (slot != NULL && !one) {
                PyTuple_SET_ITEM(slots, j, slot);
            }
            if (failed) {
                goto next;
            }
        }
        line = ((PyTypeObject *)told.step)->tp_alloc((PyTypeObject *)told.step, 0);
        if (line != NULL) {
            Step *step = (Step *)line;
            step->kernel = Py_NewRef(kernel);
            step->inputs = Py_NewRef(inputs);
            step->slots = Py_NewRef(slots);
            step->where = Py_NewRef(PyTuple_GET_ITEM(instruction, 3));
            step->depth = Py_NewRef(depth);
        }
    next:
        Py_XDECREF(inputs);
        Py_XDECREF(kinds);
        Py_XDECREF(slots);
        Py_XDECREF(kernel);
        if (line == NULL) {
            Py_CLEAR(lines);
        } else {
            PyTuple_SET_ITEM(lines, i, line);
        }
    }
    return lines;
}

/* Return where a field of the objects of a class lies that Python has added as a slot; -1 where it has none. */
static Py_ssize_t
lies_at(PyObject *type, const char *name)
{
    PyObject *found = PyObject_GetAttrString(type, name);
    Py_ssize_t at = -1;
    if (found != NULL && Py_IS_TYPE(found, &PyMemberDescr_Type) && ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX) {
        at = ((PyMemberDescrObject *)found)->d_member->offset;
    } else if (found != NULL) {
        PyErr_Format(PyExc_TypeError, "%s is no slot", name);
    }
    Py_XDECREF(found);
    return at;
}

/* Tell what states are, where the trie is made. */
static PyObject *
structured(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"state", "step", "place", "made_place", "nowhere", "endless", NULL};
    PyObject *state, *step, *place, *made_place, *nowhere, *endless;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O!O!O!O!O!O!", names, &PyType_Type, &state, &PyType_Type, &step, &PyType_Type, &place, &PyType_Type, &made_place,
                                     &PyDict_Type, &nowhere, &PyType_Type, &endless)) {
        return NULL;
    }
    if (!PyType_IsSubtype((PyTypeObject *)state, &State_type) || !PyType_IsSubtype((PyTypeObject *)step, &Step_type) || !PyType_IsSubtype((PyTypeObject *)place, &Place_type) ||
        !PyType_IsSubtype((PyTypeObject *)made_place, &Place_type)) {
        PyErr_SetString(PyExc_TypeError, "states and places have those of the recorder as their bases");
        return NULL;
    }
    Py_ssize_t made = lies_at(made_place, "made"), own[STATE_FIELDS];
    for (int i = 0; i < STATE_FIELDS && !PyErr_Occurred(); i++) {
        own[i] = lies_at(state, state_fields[i]);
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    memcpy(told.own, own, sizeof own);
    told.made = made;
    Py_XSETREF(told.state, Py_NewRef(state));
    Py_XSETREF(told.step, Py_NewRef(step));
    Py_XSETREF(told.plain_place, Py_NewRef(place));
    Py_XSETREF(told.made_place, Py_NewRef(made_place));
    Py_XSETREF(told.nowhere, Py_NewRef(nowhere));
    Py_XSETREF(told.endless, Py_NewRef(endless));
    Py_RETURN_NONE;
}

/* Tell what runs are made with, where they are defined. */
static PyObject *
launches(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"counts", "clock", "site", "files", "meters", "shared", "heavy", "run", "nothing", "no_segment", "in_trace", "trim", "finish",
                            "over", "reproducible", NULL};
    PyObject *given[14];
    Py_ssize_t reproducible, own[SITE_FIELDS];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O!OO!O!O!OOO!OOOOOOn", names, &Counts_type, &given[0], &given[1], &PyType_Type, &given[2], &PyDict_Type,
                                     &given[3], &PyDict_Type, &given[4], &given[5], &given[6], &PyType_Type, &given[7], &given[8], &given[9], &given[10],
                                     &given[11], &given[12], &given[13], &reproducible)) {
        return NULL;
    }
    if (!PyTuple_Check(given[8]) || PyTuple_GET_SIZE(given[8]) != 4 || !PyType_IsSubtype((PyTypeObject *)given[7], &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "what there is of a run are four things in a tuple");
        return NULL;
    }
    for (int i = 0; i < SITE_FIELDS && !PyErr_Occurred(); i++) {
        own[i] = lies_at(given[2], site_fields[i]);
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    PyObject **fields[] = {&runs.counts, &runs.clock, &runs.site, &runs.files, &runs.meters, &runs.shared, &runs.heavy, &runs.run, &runs.nothing,
                           &runs.no_segment, &runs.in_trace, &runs.trim, &runs.finish, &runs.over};
    memcpy(runs.own, own, sizeof own);
    runs.reproducible = reproducible;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        Py_XSETREF(*fields[i], Py_NewRef(given[i]));
    }
    Py_RETURN_NONE;
}

/* Tell what segments begin with, where the one before began so. */
static PyObject *
begins(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"segment", "counts", "segments", "roots", "trie", "lock", "serials", "none", "constant", "staged", "eager", "packing", "observer", "notes", NULL};
    PyObject *given[9];
    Py_ssize_t at[5];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O!O!O!O!OOOOOnnnnn", names, &PyType_Type, &given[0], &Counts_type, &given[1], &PyDict_Type, &given[2],
                                     &PyDict_Type, &given[3], &given[4], &given[5], &given[6], &given[7], &given[8], &at[0], &at[1], &at[2], &at[3], &at[4])) {
        return NULL;
    }
    for (int i = 0; i < 4; i++) {
        if (at[i] < 0 || at[i] > at[4]) {
            return PyErr_Format(PyExc_TypeError, "the notes of tapes are the last field of a scope that is read");
        }
    }
    if (!PyType_IsSubtype((PyTypeObject *)given[0], &Segment_type) || !PyIter_Check(given[6])) {
        return PyErr_Format(PyExc_TypeError, "what begins is a Segment, and its numbers are counted");
    }
    PyObject **fields[] = {&begin.segment, &begin.counts, &begin.segments, &begin.roots, &begin.trie, &begin.lock, &begin.serials, &begin.none, &begin.constant};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        Py_XSETREF(*fields[i], Py_NewRef(given[i]));
    }
    begin.staged = at[0], begin.eager = at[1], begin.packing = at[2], begin.observer = at[3], begin.notes = at[4];
    Py_RETURN_NONE;
}

/* Tell who asks for numbers: the places in functions that are known, and what those that ask in words are. */
static PyObject *
asking(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("asking", nargs, 2) || !PyDict_Check(args[0])) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "places are in a dict");
    }
    Py_XSETREF(runs.places, Py_NewRef(args[0]));
    Py_XSETREF(runs.calm, Py_NewRef(args[1]));
    Py_RETURN_NONE;
}

/* Tell what states are made with that were not met, where entries are recorded. */
static PyObject *
continues(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"op", "axes_are_named", "named_axes", "enter", "foreign", "others", "met", "clock", "room", "entries", "leaves", NULL};
    PyObject *op, *are_named, *axes, *enter, *foreign, *others, *met, *clock;
    Py_ssize_t room, entries, leaves;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O!OOOO!O!OOnnn", names, &PyType_Type, &op, &are_named, &axes, &enter, &PyDict_Type, &foreign, &PySet_Type, &others, &met,
                                     &clock, &room, &entries, &leaves)) {
        return NULL;
    }
    if (!PyDict_Check(met) || told.state == NULL) {
        PyErr_SetString(PyExc_TypeError, "what was met is a dict, and states are known by then");
        return NULL;
    }
    PyObject **fields[] = {&told.op, &told.axes_are_named, &told.named_axes, &told.enter, &told.foreign, &told.others, &told.met, &told.clock};
    PyObject *given[] = {op, are_named, axes, enter, foreign, others, met, clock};
    told.room = room;
    told.entries = entries;
    told.leaves = leaves;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        Py_XSETREF(*fields[i], Py_NewRef(given[i]));
    }
    Py_RETURN_NONE;
}

/* -- sweeps that were written before ------------------------------------------------------------------------------------------------- */

/* Return the slot of the wanted Variable of gradients() in a segment (borrowed), as _slots in tape/sweeps/written.py has it; NULL where it is not done here. */
static PyObject *
wanted_in(Segment *segment, PyObject *variable)
{
    Handle *handle = as_handle(variable);
    if (handle == NULL) {
        return NULL;
    }
    PyObject *own = ((Place *)handle->place)->slot;
    if (handle->segment == (PyObject *)segment) {
        return own;
    }
    PyObject *id = PyLong_FromVoidPtr(handle->cell);
    PyObject *slot = id == NULL ? NULL : PyDict_GetItemWithError(segment->entered, id);
    Py_XDECREF(id);
    PyObject *origin = slot == NULL ? NULL : PyDict_GetItemWithError(segment->origins, slot);
    if (origin == NULL) {
        return NULL;
    }
    if (PyTuple_CheckExact(origin)) {
        int same = PyTuple_GET_ITEM(origin, 0) == handle->segment && PyObject_RichCompareBool(PyTuple_GET_ITEM(origin, 1), own, Py_EQ) == 1;
        return same ? slot : NULL;
    }
    return (PyObject *)Py_TYPE(origin) == parts.node && extra_of(handle) != NULL && *of_extra(handle->extra, NODE) == origin ? slot : NULL;
}

/* Tell whether two ends are the same one: nodes of leaves, or slots of segments. */
static int
same_end(PyObject *a, PyObject *b)
{
    return a == b || (PyTuple_CheckExact(a) && PyTuple_CheckExact(b) && PyTuple_GET_ITEM(a, 0) == PyTuple_GET_ITEM(b, 0) &&
                      PyObject_RichCompareBool(PyTuple_GET_ITEM(a, 1), PyTuple_GET_ITEM(b, 1), Py_EQ) != 0);
}

/* Tell whether a sweep that ends at some slots goes through a segment only and calls no hooks elsewhere, as _ends_here in
   tape/sweeps/written.py has it; 0 also where that would take a walk. */
static int
ends_here(Segment *segment, PyObject *ends, PyObject *wanted)
{
    Py_ssize_t n = PyTuple_GET_SIZE(ends);
    PyObject *origins[LEAVES];
    if (n > LEAVES) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *origin = origins[i] = PyDict_GetItemWithError(segment->origins, PyTuple_GET_ITEM(ends, i));
        if (origin == NULL) {
            return 0;
        }
        for (Py_ssize_t j = 0; j < i; j++) {
            if (same_end(origin, origins[j])) {
                return 0;
            }
        }
        if (!PyTuple_CheckExact(origin)) {
            if (node_hooked(origin) != 0) {
                return 0;
            }
            continue;
        }
        Segment *before = (Segment *)PyTuple_GET_ITEM(origin, 0);
        if (!is_a((PyObject *)before, &Segment_type) || before->hooks == NULL || !PyDict_CheckExact(before->hooks) || PyDict_GET_SIZE(before->hooks) != 0 ||
            before->configuration != segment->configuration || before->serial == NULL || !uncut(before->state)) {
            return 0;
        }
        for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(wanted); j++) {
            PyObject *target = PyDict_GetItemWithError(segment->origins, PyTuple_GET_ITEM(wanted, j));
            if (target == NULL) { /* made here */
                continue;
            }
            if (!PyTuple_CheckExact(target) || !is_a(PyTuple_GET_ITEM(target, 0), &Segment_type)) {
                return 0;
            }
            Segment *other = (Segment *)PyTuple_GET_ITEM(target, 0);
            if (before == other ? !same_end(origin, target)
                                : other->serial == NULL || PyObject_RichCompareBool(before->serial, other->serial, Py_GT) != 0) {
                return 0;
            }
        }
    }
    return !PyErr_Occurred();
}

/* Return the cell of a result in a segment, one that it has, or a new one that is put into `cells` (a new reference). */
static PyObject *
result_cell(Segment *segment, PyObject *cells, PyObject *slot)
{
    PyObject *cell = cell_there(segment, slot);
    if (cell == NULL && !PyErr_Occurred()) {
        cell = PyDict_GetItemWithError(cells, slot);
    }
    if (cell != NULL || PyErr_Occurred()) {
        return Py_XNewRef(cell);
    }
    cell = empty_cell();
    if (cell != NULL && PyDict_SetItem(cells, slot, cell) < 0) {
        Py_CLEAR(cell);
    }
    return cell;
}

/* Add what a seed of gradients() is known by to a key, and, where it is a constant that enters with the call, it to `entering`: 1 if that is done, 0 if it
   is not done here. */
static int
seed_known_by(Segment *segment, PyObject *seed, PyObject *key, PyObject *entering)
{
    if (seed == Py_None) {
        return PyList_Append(key, seed) == 0;
    }
    Handle *handle = as_handle(seed);
    PyObject *slot = handle == NULL ? NULL : ((Place *)handle->place)->slot;
    if (handle != NULL && handle->segment != (PyObject *)segment) {
        PyObject *id = PyLong_FromVoidPtr(handle->cell);
        slot = id == NULL ? NULL : PyDict_GetItemWithError(segment->entered, id);
        Py_XDECREF(id);
    }
    if (slot != NULL || handle == NULL || PyErr_Occurred()) {
        return slot != NULL && PyList_Append(key, slot) == 0;
    }
    Kind *kind = (Kind *)((Place *)handle->place)->kind;
    int done = kind != NULL && is_a(kind, &Kind_type) && kind->requires_grad == Py_False && kind->unrecorded == Py_False &&
               PySet_Contains(told.concrete, (PyObject *)Py_TYPE(PyList_GET_ITEM(handle->cell, 0))) == 1;
    for (Py_ssize_t i = 0; done && i < PyList_GET_SIZE(entering); i++) {
        done = ((Handle *)PyList_GET_ITEM(entering, i))->cell != handle->cell;
    }
    return done && PyList_Append(key, (PyObject *)kind) == 0 && PyList_Append(entering, seed) == 0;
}

/* Return what a call of gradients() is known by, as asked in tape/sweeps/written.py has it, and put seeds that enter with it into a list; NULL where
   it is not done here. */
static PyObject *
known_by(Segment *segment, PyObject *const *args, PyObject *wanted, PyObject *entering)
{
    PyObject *roots = args[0], *seeds = args[2], *given[] = {args[3], args[4], segment->released, args[5]}, *key = PyList_New(0), *made = NULL;
    int several = PyTuple_CheckExact(roots) || PyList_CheckExact(roots), listed = PyTuple_CheckExact(seeds) || PyList_CheckExact(seeds);
    Py_ssize_t n = several ? PySequence_Fast_GET_SIZE(roots) : 1;
    int done = key != NULL && (seeds == Py_None || (listed ? PySequence_Fast_GET_SIZE(seeds) : 1) == n);
    for (int i = 0; done && i < 4; i++) {
        done = PyList_Append(key, given[i]) == 0;
    }
    for (Py_ssize_t i = 0; done && i < n; i++) {
        PyObject *root = several ? PySequence_Fast_GET_ITEM(roots, i) : roots;
        done = is_root(segment, root) && PyList_Append(key, ((Place *)((Handle *)root)->place)->slot) == 0;
    }
    if (done && seeds != Py_None) {
        done = PyList_Append(key, name_seeds) == 0;
        for (Py_ssize_t i = 0; done && i < n; i++) {
            done = seed_known_by(segment, listed ? PySequence_Fast_GET_ITEM(seeds, i) : seeds, key, entering);
        }
    }
    if (done && PyList_Append(key, wanted) == 0) {
        made = PyList_AsTuple(key);
    }
    Py_XDECREF(key);
    return made;
}

/* Return seeds in the order in which they enter a segment, where a known call has it; NULL where it has none. */
static PyObject *
in_order(PyObject *written, PyObject *entering)
{
    PyObject *order = PyObject_GetAttr(written, name_order), *found = NULL, *made = NULL;
    if (order != NULL && (found = PySequence_Fast(order, "an order is a sequence")) != NULL &&
        PySequence_Fast_GET_SIZE(found) == PyList_GET_SIZE(entering) && (made = PyList_New(0)) != NULL) {
        for (Py_ssize_t i = 0; made != NULL && i < PySequence_Fast_GET_SIZE(found); i++) {
            PyObject *seed = picked(entering, PySequence_Fast_GET_ITEM(found, i));
            if (seed == NULL || PyList_Append(made, seed) < 0) {
                Py_CLEAR(made);
            }
        }
    }
    Py_XDECREF(order);
    Py_XDECREF(found);
    return made;
}

/* Take constants out of a segment again that `entered` has put there at its end. */
static void
leave_again(Segment *segment, PyObject *entering)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    Py_ssize_t n = PyList_GET_SIZE(entering), before = PyList_GET_SIZE(segment->leaves) - n;
    PyList_SetSlice(segment->leaves, before, before + n, NULL);
    forget_leaves(segment);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *id = PyLong_FromVoidPtr(((Handle *)PyList_GET_ITEM(entering, i))->cell);
        if (id == NULL || PyDict_DelItem(segment->entered, id) < 0) {
            PyErr_Clear();
        }
        Py_XDECREF(id);
    }
    PyErr_Restore(type, value, trace);
}

/* Write a call of gradients() again as it was written at this point of the tape before, from one root or several (in a tuple or list), with or without
   seeds, to one Variable or several: return its result.  None where it is not done here: nothing has changed then. */
static PyObject *
regained(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("regained", nargs, 6)) {
        return NULL;
    }
    PyObject *inputs = args[1], *made = NULL, *start = NULL, *key = NULL, *wanted = NULL, *written = NULL, *cells = NULL, *before = NULL, *entering = NULL;
    PyObject *state = NULL, *results = NULL, *released = NULL, *ends = NULL, *held = NULL, *first = NULL, *seeds = NULL;
    int several = PyTuple_CheckExact(inputs) || PyList_CheckExact(inputs), many = PyTuple_CheckExact(args[0]) || PyList_CheckExact(args[0]);
    Segment *segment = !many ? swept(args[0]) : PySequence_Fast_GET_SIZE(args[0]) ? swept(PySequence_Fast_GET_ITEM(args[0], 0)) : NULL;
    if (segment == NULL || segment->entered == NULL || segment->origins == NULL || segment->cells == NULL || !PyDict_CheckExact(segment->cells)) {
        goto end;
    }
    Py_ssize_t n = several ? PySequence_Fast_GET_SIZE(inputs) : 1;
    if ((wanted = PyTuple_New(n)) == NULL || (seeds = PyList_New(0)) == NULL) {
        goto end;
    }
    for (Py_ssize_t i = 0; i < n && i < (several ? PySequence_Fast_GET_SIZE(inputs) : 1); i++) {
        PyObject *slot = wanted_in(segment, several ? PySequence_Fast_GET_ITEM(inputs, i) : inputs);
        if (slot == NULL) {
            goto end;
        }
        PyTuple_SET_ITEM(wanted, i, Py_NewRef(slot));
    }
    start = Py_NewRef(segment->state);
    before = Py_NewRef(segment->released);
    key = known_by(segment, args, wanted, seeds);
    if (key == NULL || (written = Py_XNewRef(PyDict_GetItemWithError(((State *)start)->next, key))) == NULL ||
        (ends = PyObject_GetAttr(written, name_ends)) == NULL || !PyTuple_CheckExact(ends) || !ends_here(segment, ends, wanted) ||
        (state = PyObject_GetAttr(written, name_state)) == NULL || !is_a(state, &State_type) ||
        (results = PyObject_GetAttr(written, name_results)) == NULL || !PyTuple_CheckExact(results) || PyTuple_GET_SIZE(results) != n ||
        (released = PyObject_GetAttr(written, name_released)) == NULL || (cells = PyDict_New()) == NULL || (held = PyTuple_New(n)) == NULL ||
        (entering = in_order(written, seeds)) == NULL || (first = Py_XNewRef(((State *)start)->n_slots)) == NULL) {
        goto end;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *pair = PyTuple_GET_ITEM(results, i);
        Place *place = PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) == 2 ? (Place *)PyTuple_GET_ITEM(pair, 1) : NULL;
        if (place == NULL || !is_a((PyObject *)place, &Place_type)) {
            goto end;
        }
        PyObject *gradient = new_handle((PyObject *)segment, (PyObject *)place, result_cell(segment, cells, place->slot));
        if (gradient == NULL) {
            goto end;
        }
        PyTuple_SET_ITEM(held, i, gradient);
    }
    int enters = PyList_GET_SIZE(entering) > 0;
    if (enters) { /* and at once, if the segment is where it was */
        PyObject *given[] = {(PyObject *)segment, entering, first};
        PyObject *all = segment->state == start && segment->open == Py_True && segment->released == before ? entered(NULL, given, 3) : Py_NewRef(Py_False);
        Py_XDECREF(all);
        if (all != Py_True) {
            goto end;
        }
    }
    if (advance(segment, start, before, state, released, cells) == 1) {
        made = Py_NewRef(several ? held : PyTuple_GET_ITEM(held, 0));
    } else if (enters) {
        leave_again(segment, entering);
    }
end:;
    PyObject *mine[] = {held, cells, start, key, wanted, written, state, results, released, ends, before, entering, first, seeds, (PyObject *)segment};
    clear_fields(mine, mine + sizeof mine / sizeof *mine);
    return made != NULL || PyErr_Occurred() ? made : Py_NewRef(Py_None);
}

/* A call of gradients() for some roots, inputs and perhaps seeds: what `regained` says; NULL without an exception where that is not done here. */
static PyObject *
regained_by(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *create = Py_False;
    if (kwnames != NULL) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, 0);
        if (PyTuple_GET_SIZE(kwnames) != 1 || PyUnicode_Compare(name, name_create_graph) != 0 || !PyBool_Check(create = args[nargs])) {
            return NULL;
        }
    }
    PyObject *revision = runs.rules == NULL || runs.rules == Py_None ? NULL : PyObject_GetAttr(runs.rules, name_revision);
    PyObject *given[] = {args[0], args[1], nargs == 3 ? args[2] : Py_None, create, create, revision};
    PyObject *made = revision == NULL ? NULL : regained(NULL, given, 6);
    Py_XDECREF(revision);
    if (made == Py_None) {
        Py_CLEAR(made);
    }
    return made;
}

/* Tell what sweeps are written again with; where the rules are None, all calls go through Python. */
static PyObject *
sweeping(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("sweeping", nargs, 6)) {
        return NULL;
    }
    PyObject **fields[] = {&runs.rules, &runs.assigning, &runs.assign, &runs.accumulate, &runs.finished, &runs.trimmed};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        Py_XSETREF(*fields[i], Py_NewRef(args[i]));
    }
    Py_RETURN_NONE;
}

/* Enter the value that a segment that has run has at a slot: its slot in the segment of a walk (a new reference). */
static PyObject *
slot_of_forward(Walk *walk, Segment *from, PyObject *table, PyObject *leaves, PyObject *slot)
{
    Py_ssize_t number = PyLong_AsSsize_t(slot);
    PyObject *index = PyDict_GetItemWithError(leaves, slot), *cell = NULL, *origin = (PyObject *)from, *at = slot, *node = NULL;
    if (PyErr_Occurred() || number < 0 || number >= PyList_GET_SIZE(table)) {
        return NULL;
    }
    Place *place = (Place *)PyList_GET_ITEM(table, number);
    if (index == NULL) {
        cell = saved_of(from) == NULL ? NULL : PyDict_GetItemWithError(saved_of(from), slot);
    } else {
        Py_ssize_t i = PyLong_AsSsize_t(index);
        cell = !PyErr_Occurred() && i >= 0 && i < PyList_GET_SIZE(from->leaves) ? PyList_GET_ITEM(from->leaves, i) : NULL;
        PyObject *end = PyDict_GetItemWithError(from->origins, slot);
        origin = Py_None;
        if (end != NULL && PyTuple_CheckExact(end) && PyTuple_GET_SIZE(end) == 2) {
            origin = PyTuple_GET_ITEM(end, 0);
            at = PyTuple_GET_ITEM(end, 1);
        } else {
            node = end;
        }
    }
    if (cell == NULL || !PyList_CheckExact(cell) || PyList_GET_SIZE(cell) != 1 || !is_a((PyObject *)place, &Place_type)) {
        return NULL;
    }
    Kind *kind = (Kind *)place->kind;
    if (kind == NULL || !is_a((PyObject *)kind, &Kind_type) || (index != NULL && kind->unrecorded != Py_False && kind->requires_grad == Py_False)) {
        return NULL; /* of an unrecorded leaf, the segment knows the line */
    }
    Py_INCREF(cell);
    Py_INCREF(place);
    Py_INCREF(origin);
    Py_INCREF(at);
    Py_XINCREF(node);
    PyObject *entered = slot_of_cell(walk, cell, place, origin, at, node, NULL);
    Py_XDECREF(node);
    Py_DECREF(at);
    Py_DECREF(origin);
    Py_DECREF(place);
    Py_DECREF(cell);
    return entered;
}

/* Tell whether two frozensets of numbers have nothing in common. */
static int
apart(PyObject *a, PyObject *b)
{
    if (!PyFrozenSet_CheckExact(a) || !PyFrozenSet_CheckExact(b)) {
        return 0;
    }
    if (PySet_GET_SIZE(a) == 0 || PySet_GET_SIZE(b) == 0) {
        return 1;
    }
    PyObject *common = PyNumber_And(a, b);
    int none = common != NULL && PySet_GET_SIZE(common) == 0;
    Py_XDECREF(common);
    return none;
}

/* Write the plan of a segment that has run, of some structure whose leaves have these positions, with these seeds, where it was written at this point
   of the tape before: return the slots where it ends and the cotangents there.  None where it is not done here: nothing has changed then. */
static PyObject *
emitted(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("emitted", nargs, 5)) {
        return NULL;
    }
    PyObject *plan = args[0], *structure = args[2], *leaves = args[3], *seeds = args[4];
    PyObject *made = NULL, *externals = NULL, *table = NULL, *entries = NULL, *start = NULL, *key = NULL, *written = NULL, *state = NULL, *results = NULL, *cells = NULL;
    Segment *from = (Segment *)args[1];
    Walk walk;
    int begun = 0;
    begin_walk(&walk);
    if (!is_a(args[1], &Segment_type) || !PyDict_CheckExact(leaves) || !PyList_CheckExact(seeds) || told.changes == NULL ||
        from->released == NULL || !PyFrozenSet_CheckExact(from->released) || from->trace != Py_None ||
        from->leaves == NULL || from->origins == NULL) {
        Py_RETURN_NONE;
    }
    walk.segment = recording(walk.thread, &begun);
    Segment *segment = walk.segment;
    if (segment == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    if (!is_a(segment->state, &State_type) || segment->entered == NULL || segment->cells == NULL || segment->leaves == NULL || segment->origins == NULL ||
        segment->leaf_lines == NULL || segment->open != Py_True || (externals = PyObject_GetAttr(plan, name_externals)) == NULL ||
        !PyTuple_CheckExact(externals) || (table = PyObject_GetAttr(structure, name_table)) == NULL || !PyList_CheckExact(table) ||
        (entries = PyObject_GetAttr(plan, name_entries)) == NULL || !apart(from->released, entries) ||
        (PySet_GET_SIZE(entries) > 0 && saved_of(from) == NULL)) { /* without, it is a part of a plan, to which what it reads is given */
        goto end;
    }
    start = Py_NewRef(segment->state);
    walk.state = (State *)Py_NewRef(start);
    Py_ssize_t n = PyTuple_GET_SIZE(externals), m = PyList_GET_SIZE(seeds);
    if ((key = PyTuple_New(2 + n + m)) == NULL) {
        goto end;
    }
    PyTuple_SET_ITEM(key, 0, Py_NewRef(plan));
    PyTuple_SET_ITEM(key, 1, Py_NewRef(Py_None)); /* one sweep */
    for (Py_ssize_t i = 0; i < n + m; i++) {
        Handle *seed = i < n || i - n >= PyList_GET_SIZE(seeds) ? NULL : as_handle(PyList_GET_ITEM(seeds, i - n));
        PyObject *slot = i < n ? slot_of_forward(&walk, from, table, leaves, PyTuple_GET_ITEM(externals, i)) : seed == NULL ? NULL : slot_of(&walk, seed);
        if (slot == NULL) {
            goto end;
        }
        PyTuple_SET_ITEM(key, 2 + i, slot);
    }
    written = Py_XNewRef(PyDict_GetItemWithError(walk.state->next, key));
    if (written == NULL || (state = PyObject_GetAttr(written, name_state)) == NULL || !is_a(state, &State_type) ||
        (results = PyObject_GetAttr(written, name_results)) == NULL || (cells = PyDict_New()) == NULL) {
        goto end;
    }
    Py_SETREF(results, PySequence_Tuple(results));
    Py_ssize_t ends = results == NULL ? 0 : PyTuple_GET_SIZE(results);
    PyObject *outputs = results == NULL ? NULL : PyDict_New(), *fresh[LEAVES];
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; outputs != NULL && i < ends; i++) {
        PyObject *pair = PyTuple_GET_ITEM(results, i);
        Place *place = PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) == 2 ? (Place *)PyTuple_GET_ITEM(pair, 1) : NULL;
        Py_ssize_t known = PyDict_GET_SIZE(cells);
        PyObject *handle = place == NULL || !is_a((PyObject *)place, &Place_type) || count == LEAVES
                               ? NULL : new_handle((PyObject *)segment, (PyObject *)place, result_cell(segment, cells, place->slot));
        if (handle == NULL || PyDict_SetItem(outputs, PyTuple_GET_ITEM(pair, 0), handle) < 0) {
            Py_CLEAR(outputs);
        } else if (PyDict_GET_SIZE(cells) > known) {
            fresh[count++] = handle; /* the dict of outputs holds it */
        }
        Py_XDECREF(handle);
    }
    if (outputs != NULL && commit(&walk, (State *)start, (State *)state, fresh, count) == 1) {
        made = Py_NewRef(outputs);
    }
    Py_XDECREF(outputs);
end:
    end_walk(&walk);
    Py_XDECREF(externals);
    Py_XDECREF(entries);
    Py_XDECREF(table);
    Py_XDECREF(start);
    Py_XDECREF(key);
    Py_XDECREF(written);
    Py_XDECREF(state);
    Py_XDECREF(results);
    Py_XDECREF(cells);
    Py_DECREF(segment);
    return made != NULL || PyErr_Occurred() ? made : Py_NewRef(Py_None);
}

/* Tell whether the last entry of a structure reads no value twice, or is not alone in it. */
static int
reads_once(State *state, Py_ssize_t leaves)
{
    PyObject *inputs = state->inputs;
    if (PyLong_AsSsize_t(state->depth) > leaves + 1) {
        return 1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); i++) {
        for (Py_ssize_t j = 0; j < i; j++) {
            if (PyObject_RichCompareBool(PyTuple_GET_ITEM(inputs, i), PyTuple_GET_ITEM(inputs, j), Py_EQ) != 0) {
                return 0;
            }
        }
    }
    return 1;
}

/* Return the plan by which a segment is swept from some slots, a tuple; NULL without an exception where it is not known, or not swept in C. */
static PyObject *
plan_of(Segment *segment, PyObject *slots, PyObject *about)
{
    PyObject *kept = PySequence_Tuple(PyTuple_GET_ITEM(segment->run, 0)), *first = kept == NULL ? NULL : PyTuple_Pack(3, name_plan, kept, slots);
    PyObject *key = first == NULL ? NULL : PySequence_Concat(first, about);
    PyObject *plan = key == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(*own(segment->state, CACHE), key));
    PyObject *entries = plan == NULL ? NULL : PyObject_GetAttr(plan, name_entries);
    if (entries == NULL || !apart(segment->released, entries) || !has(plan, name_straight, Py_True) || !has(plan, name_hazard, Py_None)) {
        Py_CLEAR(plan);
    }
    PyObject *mine[] = {kept, first, key, entries};
    clear_fields(mine, mine + sizeof mine / sizeof *mine);
    return plan;
}

enum { HEAP, WAITING, GRADIENTS, SWEPT, PART, ARRIVE, SETTINGS, ABOUT, ADD, POP, PUSH, OF_SWEEP };

/* Return the cotangents that wait for a segment, by slot (a new reference); where there are none so far, it begins to wait. */
static PyObject *
waiting_for(Segment *segment, PyObject *const *sweep)
{
    PyObject *waiting = Py_XNewRef(PyDict_GetItemWithError(sweep[WAITING], (PyObject *)segment));
    if (waiting != NULL || PyErr_Occurred()) {
        return waiting;
    }
    PyObject *order = PyNumber_Negative(segment->serial), *pair = order == NULL ? NULL : PyTuple_Pack(2, order, segment), *none = NULL;
    if (pair != NULL && (waiting = PyDict_New()) != NULL && PyDict_SetItem(sweep[WAITING], (PyObject *)segment, waiting) == 0) {
        none = PyObject_CallFunctionObjArgs(sweep[PUSH], sweep[HEAP], pair, NULL);
    }
    Py_XDECREF(order);
    Py_XDECREF(pair);
    if (none == NULL) {
        Py_CLEAR(waiting);
    }
    Py_XDECREF(none);
    return waiting;
}

/* Hand on a cotangent at which the sweep of a segment ended, as Sweep.arrive in tape/sweeps/sweep.py has it: 0 where an exception was raised. */
static int
arrives(PyObject *end, PyObject *cotangent, PyObject *const *sweep)
{
    Segment *segment = PyTuple_CheckExact(end) && PyTuple_GET_SIZE(end) == 2 ? (Segment *)PyTuple_GET_ITEM(end, 0) : NULL;
    int leaf = (PyObject *)Py_TYPE(end) == parts.node;
    if (!leaf && (segment == NULL || !is_a(segment, &Segment_type) || (PyObject *)Py_TYPE(segment->state) != told.state ||
                  PySet_GET_SIZE(*own(segment->state, CUT)) != 0)) {
        PyObject *none = PyObject_CallFunctionObjArgs(sweep[ARRIVE], end, cotangent, NULL);
        Py_XDECREF(none);
        return none != NULL;
    }
    PyObject *totals = leaf ? Py_NewRef(sweep[GRADIENTS]) : waiting_for(segment, sweep), *key = leaf ? end : PyTuple_GET_ITEM(end, 1);
    PyObject *total = totals == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(totals, key)), *terms[] = {total, cotangent};
    PyObject *sum = PyErr_Occurred() ? NULL : total == NULL || total == Py_None ? Py_NewRef(cotangent) : record_all(sweep[ADD], terms, 2);
    int done = sum != NULL && PyDict_SetItem(totals, key, sum) == 0;
    Py_XDECREF(totals);
    Py_XDECREF(total);
    Py_XDECREF(sum);
    return done;
}

/* Tell whether a plan may be written behind what this thread has pending, which ends before it becomes too long. */
static int
has_space(PyObject *instructions, State *state)
{
    Segment *own = pending(this_thread());
    int space = own == NULL;
    if (own != NULL && is_a(own->state, &State_type) && PyList_CheckExact(instructions)) {
        State *before = (State *)own->state;
        Py_ssize_t depth = PyLong_AsSsize_t(before->depth), leaves = PyLong_AsSsize_t(before->n_slots) - depth;
        leaves += PyLong_AsSsize_t(state->n_slots) - PyLong_AsSsize_t(state->depth);
        space = depth + PyList_GET_SIZE(instructions) <= 2 * told.entries && leaves <= told.leaves && !PyErr_Occurred();
    }
    Py_XDECREF(own);
    return space;
}

/* Sweep the segment that comes next, as one of its structure was swept before: 1, and 0 where that is not done here (nothing has changed then but that
   what is written may have run before it); -1 with an exception. */
static int
swept_next(PyObject *const *sweep)
{
    PyObject *pair = Py_NewRef(PyList_GET_ITEM(sweep[HEAP], 0)), *segment = Py_NewRef(PyTuple_GET_ITEM(pair, 1)), *state = NULL, *done = NULL;
    PyObject *came = Py_XNewRef(PyDict_GetItemWithError(sweep[WAITING], segment)), *slots = NULL, *seeds = NULL, *plan = NULL, *instructions = NULL;
    PyObject *leaves = NULL, *outputs = NULL, *swept = NULL, *slot, *cotangent;
    Segment *from = (Segment *)segment;
    Py_ssize_t at = 0;
    if (came == NULL || !is_plain(from) || from->origins == NULL || from->configuration != sweep[SETTINGS] ||
        PySet_GET_SIZE(*own(from->state, CUT)) != 0 || !reads_once((State *)from->state, PyList_GET_SIZE(from->leaves))) {
        goto end;
    }
    state = Py_NewRef(from->state);
    if ((seeds = PyDict_Keys(came)) == NULL || PyList_Sort(seeds) < 0 || (slots = PyList_AsTuple(seeds)) == NULL) {
        goto end;
    }
    for (; at < PyList_GET_SIZE(seeds); at++) {
        if (PyList_SetItem(seeds, at, Py_XNewRef(PyDict_GetItemWithError(came, PyTuple_GET_ITEM(slots, at)))) < 0) {
            goto end;
        }
    }
    if ((plan = plan_of(from, slots, sweep[ABOUT])) == NULL || (instructions = PyObject_GetAttr(plan, name_instructions)) == NULL ||
        PyObject_IsTrue(instructions) != 1 || (leaves = Py_XNewRef(PyDict_GetItemWithError(*own(state, CACHE), name_leaves))) == NULL) {
        goto end;
    }
    PyObject *popped = PyObject_CallOneArg(sweep[POP], sweep[HEAP]), *none = popped == NULL ? NULL : PyObject_CallFunctionObjArgs(sweep[PART], plan, segment, NULL);
    Py_XDECREF(popped);
    Py_XDECREF(none);
    if (none != NULL && has_space(instructions, (State *)state)) {
        PyObject *given[] = {plan, segment, state, leaves, seeds};
        outputs = emitted(NULL, given, 5);
    }
    if (PyErr_Occurred() || outputs == NULL || outputs == Py_None) {
        if (!PyErr_Occurred() && (none = PyObject_CallFunctionObjArgs(sweep[PUSH], sweep[HEAP], pair, NULL)) != NULL) {
            Py_DECREF(none);
        }
        goto end;
    }
    if (PyDict_DelItem(sweep[WAITING], segment) == 0 && (swept = PyTuple_Pack(2, segment, plan)) != NULL && PyList_Append(sweep[SWEPT], swept) == 0) {
        done = Py_True;
        PyObject *origins = Py_NewRef(from->origins);
        for (at = 0; done != NULL && PyDict_Next(outputs, &at, &slot, &cotangent);) {
            PyObject *end = Py_XNewRef(PyDict_GetItemWithError(origins, slot));
            if (PyErr_Occurred() || (end != NULL && !arrives(end, cotangent, sweep))) {
                done = NULL;
            }
            Py_XDECREF(end);
        }
        Py_DECREF(origins);
    }
end:;
    PyObject *mine[] = {pair, segment, state, came, slots, seeds, plan, instructions, leaves, outputs, swept};
    clear_fields(mine, mine + sizeof mine / sizeof *mine);
    return PyErr_Occurred() ? -1 : done != NULL;
}

/* Sweep segments that have run as long as each is swept as one of its structure was before: what Sweep._sweep_segment in tape/sweeps/sweep.py does with
   each, of a sweep to all leaves. */
static PyObject *
swept_on(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("swept_on", nargs, OF_SWEEP)) {
        return NULL;
    }
    int more = PyList_CheckExact(args[HEAP]) && PyDict_CheckExact(args[WAITING]) && PyDict_CheckExact(args[GRADIENTS]) && PyList_CheckExact(args[SWEPT]) &&
               PyTuple_CheckExact(args[ABOUT]) && runs.run != NULL && parts.node != NULL && told.entries > 0;
    while (more > 0 && PyList_GET_SIZE(args[HEAP]) > 0) {
        more = swept_next(args);
    }
    return more < 0 ? NULL : Py_NewRef(Py_None);
}

/* Return the Extra of a Variable to which something is added as it was to be (borrowed); NULL where that is not done here. */
static PyObject *
receiver(PyObject *addition)
{
    Handle *variable, *total;
    if (!PyTuple_CheckExact(addition) || PyTuple_GET_SIZE(addition) != 4 || (variable = as_handle(PyTuple_GET_ITEM(addition, 0))) == NULL ||
        extra_of(variable) == NULL || (total = as_handle(PyTuple_GET_ITEM(addition, 3))) == NULL ||
        (PyList_GET_ITEM(total->cell, 0) == Py_None && total->segment != Py_None &&
         !(is_a(total->segment, &Segment_type) && ((Segment *)total->segment)->run == Py_None))) {
        return NULL;
    }
    int same = *of_extra(variable->extra, GRAD) == PyTuple_GET_ITEM(addition, 2);
    return same && *of_extra(variable->extra, ASSIGNED) == Py_False ? variable->extra : NULL;
}

/* Set every `.grad` to its sum, and return True; False, and nothing is done, where one is not as it was or its sum may have failed. */
static PyObject *
assigned(PyObject *Py_UNUSED(module), PyObject *added)
{
    Py_ssize_t n = PyList_CheckExact(added) ? PyList_GET_SIZE(added) : -1, i;
    for (i = 0; i < n && receiver(PyList_GET_ITEM(added, i)) != NULL; i++) {
    }
    if (i != n) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    }
    for (i = 0; i < n; i++) { /* what was there is held by the addition: nothing is freed */
        PyObject *addition = PyList_GET_ITEM(added, i);
        PyObject **grad = of_extra(((Handle *)PyTuple_GET_ITEM(addition, 0))->extra, GRAD), *before = *grad;
        *grad = Py_NewRef(PyTuple_GET_ITEM(addition, 3));
        Py_DECREF(before);
    }
    Py_RETURN_TRUE;
}

/* Have a Variable be what an augmented assignment under `no_grad` has made of it, as `store` in tape/variables/updates.py does: a leaf stays one by an `op`,
   in a place that is made so.  True; None where it is not done here, and nothing has changed then. */
static PyObject *
overwritten(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("overwritten", nargs, 4)) {
        return NULL;
    }
    Handle *x = unwatched(args[0], told.trace), *result = x == NULL ? NULL : as_handle(args[1]);
    Thread *thread = result == NULL ? NULL : this_thread();
    PyObject *kind = result == NULL ? NULL : ((Place *)x->place)->kind, *done = Py_None, *start = NULL, *slot, *node = NULL, *number = NULL, *place = NULL;
    PyObject *ref = NULL, *cell = NULL, *own_place = NULL, *traced;
    State *child = NULL;
    Segment *segment = thread == NULL || kind == NULL || !is_a(kind, &Kind_type) || !unwatching(thread) || !unobserved(thread, told.caller) ||
                               PyTuple_GET_ITEM(thread->scope, 0) != begin.constant || PyList_GET_ITEM(result->cell, 0) != Py_None ? NULL : pending(thread);
    if (segment == NULL || result->segment != (PyObject *)segment || segment->epoch == NULL || segment->epoch != ((Changes *)told.changes)->epoch ||
        segment->trace != Py_None || (PyObject *)Py_TYPE(segment->state) != told.state) {
        goto end;
    }
    if (((Kind *)kind)->requires_grad == Py_False) { /* it becomes what the result is */
        PyObject *retained = x->segment == Py_None ? NULL : is_a(x->segment, &Segment_type) ? ((Segment *)x->segment)->retained : Py_None;
        if (((Place *)result->place)->kind != kind || (retained != NULL && !(PyDict_CheckExact(retained) && PyDict_GET_SIZE(retained) == 0)) ||
            runs.in_trace == NULL || (traced = PyObject_CallNoArgs(runs.in_trace)) == NULL) {
            goto end;
        }
        Py_DECREF(traced);
        if (traced == Py_False && as_handle((PyObject *)x) == x && as_handle((PyObject *)result) == result) {
            PyObject *before[] = {x->cell, x->segment, x->place};
            x->cell = Py_NewRef(result->cell);
            x->segment = Py_NewRef(result->segment);
            x->place = Py_NewRef(result->place);
            done = Py_True;
            clear_fields(before, before + 3);
        }
        goto end;
    }
    start = Py_NewRef(segment->state);
    slot = ((Place *)result->place)->slot;
    if (x->segment != Py_None || extra_of(x) == NULL || (node = Py_NewRef(*of_extra(x->extra, NODE))) == Py_None ||
        (child = (State *)found((State *)start, args[2], &slot, 1)) == NULL || (PyObject *)Py_TYPE(child) != told.state ||
        *own((PyObject *)child, ENDS) != Py_True || *own((PyObject *)child, FULL) != Py_False || child->place == NULL ||
        !is_a(child->place, &Place_type) || ((Place *)child->place)->kind != kind ||
        (2 * PyLong_AsSsize_t(child->depth) > told.entries && has(x->place, name_segment, (PyObject *)segment)) || /* a step ends */
        !PyDict_CheckExact(segment->entered) || !PyDict_CheckExact(segment->origins) || !PyList_CheckExact(segment->leaf_places)) {
        goto end;
    }
    own_place = Py_NewRef(x->place);
    slot = ((Place *)child->place)->slot;
    if ((cell = empty_cell()) == NULL || (number = PyLong_FromVoidPtr(cell)) == NULL || have_room(segment, 1) < 0 ||
        (place = PyObject_CallFunctionObjArgs(args[3], slot, kind, (PyObject *)segment, NULL)) == NULL || !is_a(place, &Place_type) ||
        (ref = PyWeakref_NewRef(place, NULL)) == NULL || segment->epoch != ((Changes *)told.changes)->epoch || segment->state != start ||
        x->segment != Py_None || x->place != own_place || have_room(segment, 1) < 0) { /* Python has run above */
        goto end;
    }
    if (PyList_Append(segment->leaf_places, ref) < 0 || PyDict_SetItem(segment->entered, number, slot) < 0) {
        goto end;
    }
    if (PyDict_SetItem(segment->origins, slot, node) < 0) { /* memory ended */
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyDict_DelItem(segment->entered, number);
        PyErr_Restore(type, value, trace);
        goto end;
    }
    add_result(segment, slot, cell);
    segment->state = Py_NewRef((PyObject *)child);
    Py_DECREF(start); /* held above */
    PyObject *before[] = {x->cell, x->place};
    x->cell = Py_NewRef(cell);
    x->place = Py_NewRef(place);
    done = Py_True;
    clear_fields(before, before + 2);
end:;
    PyObject *mine[] = {(PyObject *)segment, start, node, number, place, ref, cell, own_place, (PyObject *)child};
    clear_fields(mine, mine + sizeof mine / sizeof *mine);
    return PyErr_Occurred() ? NULL : Py_NewRef(done);
}

/* Return the Variables that are to enter a segment where `slots` has None, as tape/extend/update.py has it; None where others are elsewhere. */
static PyObject *
lacking(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("lacking", nargs, 3)) {
        return NULL;
    }
    Segment *segment = (Segment *)args[0];
    PyObject *read = args[1], *slots = args[2], *made = NULL;
    if (!is_a(args[0], &Segment_type) || segment->entered == NULL || !PyDict_CheckExact(segment->entered) || !PyList_CheckExact(read) ||
        !PyList_CheckExact(slots) || PyList_GET_SIZE(read) != PyList_GET_SIZE(slots) || (made = PyList_New(0)) == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(read); i++) {
        PyObject *slot = PyList_GET_ITEM(slots, i), *found;
        Handle *handle = as_handle(PyList_GET_ITEM(read, i));
        Kind *kind = handle == NULL ? NULL : (Kind *)((Place *)handle->place)->kind;
        if (kind == NULL || !is_a(kind, &Kind_type)) {
            goto elsewhere;
        }
        if (handle->segment == (PyObject *)segment) {
            found = ((Place *)handle->place)->slot;
        } else {
            PyObject *id = PyLong_FromVoidPtr(handle->cell);
            found = id == NULL ? NULL : PyDict_GetItemWithError(segment->entered, id);
            Py_XDECREF(id);
            found = found == NULL ? Py_None : found;
        }
        if (PyErr_Occurred() || (found != slot && !(PyLong_CheckExact(found) && PyLong_CheckExact(slot) && PyObject_RichCompareBool(found, slot, Py_EQ) == 1))) {
            goto elsewhere;
        }
        if (slot == Py_None && (PySet_Contains(told.concrete, (PyObject *)Py_TYPE(PyList_GET_ITEM(handle->cell, 0))) != 1 ||
                                (kind->requires_grad != Py_False && handle->segment != Py_None) || PyList_Append(made, (PyObject *)handle) < 0)) {
            goto elsewhere;
        }
    }
    return made;
elsewhere:
    Py_DECREF(made);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Enter Variables into a segment from a slot on and return True; False, and nothing is done, where one has no node yet. */
static PyObject *
entered(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("entered", nargs, 3)) {
        return NULL;
    }
    Segment *segment = (Segment *)args[0];
    PyObject *entering = args[1];
    Py_ssize_t first = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (!is_a(args[0], &Segment_type) || !PyList_CheckExact(entering) || segment->entered == NULL || segment->leaves == NULL ||
        segment->origins == NULL || segment->leaf_lines == NULL || !PyList_CheckExact(segment->leaves)) {
        Py_RETURN_FALSE;
    }
    Py_ssize_t n = PyList_GET_SIZE(entering);
    PyObject *ends = PyList_New(n); /* where sweeps end, of what requires grad; the lines of what is unrecorded */
    for (Py_ssize_t i = 0; ends != NULL && i < n; i++) {
        Handle *handle = as_handle(PyList_GET_ITEM(entering, i));
        Kind *kind = handle == NULL ? NULL : (Kind *)((Place *)handle->place)->kind;
        PyObject *end = NULL;
        if (kind != NULL && is_a(kind, &Kind_type)) {
            if (kind->requires_grad == Py_False) {
                end = kind->unrecorded == Py_False ? Py_NewRef(Py_None) : line_of((Place *)handle->place, handle->segment);
            } else if (extra_of(handle) != NULL && *of_extra(handle->extra, NODE) != Py_None) {
                end = Py_NewRef(*of_extra(handle->extra, NODE));
            }
        }
        if (end == NULL) {
            Py_CLEAR(ends);
        } else {
            PyList_SET_ITEM(ends, i, end);
        }
    }
    if (ends == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    }
    int failed = 0;
    for (Py_ssize_t i = 0; !failed && i < n; i++) {
        Handle *handle = (Handle *)PyList_GET_ITEM(entering, i);
        Kind *kind = (Kind *)((Place *)handle->place)->kind;
        PyObject *found = kind->requires_grad != Py_False ? segment->origins : kind->unrecorded != Py_False ? segment->leaf_lines : NULL;
        PyObject *id = PyLong_FromVoidPtr(handle->cell), *slot = PyLong_FromSsize_t(first + i);
        failed = id == NULL || slot == NULL || PyDict_SetItem(segment->entered, id, slot) < 0 || PyList_Append(segment->leaves, handle->cell) < 0 ||
                 (found != NULL && PyDict_SetItem(found, slot, PyList_GET_ITEM(ends, i)) < 0);
        Py_XDECREF(id);
        Py_XDECREF(slot);
    }
    Py_DECREF(ends);
    return failed ? NULL : Py_NewRef(Py_True);
}

/* Tell whether a Variable is in a place of a known update, and add it to what that reads: -1 where memory ended. */
static int
reads(PyObject *read, PyObject *variable, PyObject *places)
{
    Handle *handle = as_handle(variable);
    Py_ssize_t at = PyList_GET_SIZE(read);
    if (handle == NULL || at >= PyList_GET_SIZE(places) || handle->place != PyList_GET_ITEM(places, at)) {
        return 0;
    }
    return PyList_Append(read, variable) < 0 ? -1 : 1;
}

/* Return what a known update of these parameters and of what is further written reads, a list; NULL without an exception where it is not as it was. */
static PyObject *
read_by(PyObject *parameters, PyObject *further, PyObject *places)
{
    PyObject *read = PyList_New(0);
    int as_it_was = read != NULL && PyList_CheckExact(places);
    for (Py_ssize_t i = 0; as_it_was > 0 && i < PyList_GET_SIZE(parameters); i++) {
        Handle *handle = as_handle(PyList_GET_ITEM(parameters, i));
        as_it_was = handle != NULL && extra_of(handle) != NULL ? reads(read, *of_extra(handle->extra, GRAD), places) : 0;
    }
    for (Py_ssize_t i = 0; as_it_was > 0 && i < PyList_GET_SIZE(parameters); i++) {
        as_it_was = reads(read, PyList_GET_ITEM(parameters, i), places);
    }
    for (Py_ssize_t i = 0; as_it_was > 0 && i < PyList_GET_SIZE(further); i++) {
        as_it_was = reads(read, PyList_GET_ITEM(further, i), places);
    }
    if (as_it_was <= 0 || PyList_GET_SIZE(read) != PyList_GET_SIZE(places)) {
        Py_CLEAR(read);
    }
    return read;
}

/* Put a known update on a segment whose lock is held: 1 if that is done, 0 if it is not done here, -1 if memory ended. */
static int
put(Segment *segment, PyObject *start, PyObject *entering, PyObject *first, PyObject *state, PyObject *results, PyObject *cells)
{
    if (segment->open != Py_True || segment->state != start || !PyDict_CheckExact(segment->cells)) {
        return 0;
    }
    PyObject *given[] = {(PyObject *)segment, entering, first}, *all = entered(NULL, given, 3);
    int done = all == NULL ? -1 : all == Py_True;
    Py_XDECREF(all);
    done = done > 0 && have_room(segment, PyList_GET_SIZE(results)) < 0 ? -1 : done;
    for (Py_ssize_t i = 0; done > 0 && i < PyList_GET_SIZE(results); i++) {
        add_result(segment, PyList_GET_ITEM(results, i), PyList_GET_ITEM(cells, i));
    }
    if (done > 0) {
        segment->state = Py_NewRef(state);
        Py_DECREF(start); /* who called refers to it */
    }
    return done;
}

/* Do a known update again as Update.again in tape/extend/update.py does: True; False where it is not done here, and nothing has changed then. */
static PyObject *
updated(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("updated", nargs, 5)) {
        return NULL;
    }
    PyObject *parameters = args[1], *further = args[2], *known = NULL, *start = NULL, *read = NULL, *entering = NULL, *cells = NULL, *lock = NULL;
    PyObject *state = NULL, *places = NULL, *slots = NULL, *first = NULL, *results = NULL;
    Thread *thread = told.changes == NULL ? NULL : this_thread();
    int done = 0, begun = 0, alone = thread != NULL && unwatching(thread) && unobserved(thread, told.trace) && unobserved(thread, told.forward);
    Segment *segment = alone && unobserved(thread, told.caller) ? recording(thread, &begun) : NULL;
    if (segment == NULL || segment->epoch == NULL || segment->epoch != ((Changes *)told.changes)->epoch || segment->trace != Py_None ||
        !PyList_CheckExact(parameters) || !PyList_CheckExact(further) || !is_a(segment->state, &State_type) || !PyDict_Check(((State *)segment->state)->next)) {
        goto end;
    }
    start = Py_NewRef(segment->state);
    known = Py_XNewRef(PyDict_GetItemWithError(((State *)start)->next, args[0]));
    if (known == NULL || (state = PyObject_GetAttr(known, name_state)) == NULL || (places = PyObject_GetAttr(known, name_places)) == NULL ||
        (slots = PyObject_GetAttr(known, name_slots)) == NULL || (first = PyObject_GetAttr(known, name_first)) == NULL ||
        (results = PyObject_GetAttr(known, name_results)) == NULL || !is_a(state, &State_type) || !PyList_CheckExact(results) ||
        PyList_GET_SIZE(results) != PyList_GET_SIZE(parameters) + PyList_GET_SIZE(further) ||
        (read = read_by(parameters, further, places)) == NULL) {
        goto end;
    }
    Py_ssize_t n = PyList_GET_SIZE(results), before = PyList_GET_SIZE(read) - n;
    PyObject *given[] = {(PyObject *)segment, read, slots};
    if ((entering = lacking(NULL, given, 3)) == NULL || entering == Py_None || (cells = PyList_New(n)) == NULL || (lock = Py_XNewRef(segment->lock)) == NULL) {
        goto end;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *cell = empty_cell();
        if (cell == NULL) {
            goto end;
        }
        PyList_SET_ITEM(cells, i, cell);
    }
    PyObject *got = PyObject_CallMethodNoArgs(lock, name_acquire), *type, *value, *trace;
    if (got == NULL) {
        goto end;
    }
    done = put(segment, start, entering, first, state, results, cells);
    PyErr_Fetch(&type, &value, &trace);
    PyObject *gone = PyObject_CallMethodNoArgs(lock, name_release);
    Py_XDECREF(gone);
    PyErr_Restore(type, value, trace);
    Py_DECREF(got);
    if (done == 1 && (done = launch(segment, name_step)) == 0) {
        PyObject *none = PyObject_CallFunctionObjArgs(args[3], segment, name_step, NULL);
        done = none == NULL ? -1 : 1;
        Py_XDECREF(none);
    }
    if (done == 1) {
        PyObject *run = segment->run;
        if (!PyTuple_Check(run) || PyTuple_GET_SIZE(run) < 2 || PyObject_Size(PyTuple_GET_ITEM(run, 1)) != 0) {
            PyObject *none = PyObject_CallFunctionObjArgs(args[4], segment, results, NULL);
            done = none == NULL ? -1 : 1;
            Py_XDECREF(none);
        }
    }
    for (Py_ssize_t i = 0; done == 1 && i < n; i++) { /* one by one what was there is freed: an array, for which no Python runs */
        Handle *handle = (Handle *)PyList_GET_ITEM(read, before + i);
        Py_XSETREF(handle->cell, Py_NewRef(PyList_GET_ITEM(cells, i)));
    }
end:;
    PyObject *mine[] = {known, start, read, entering, cells, lock, state, places, slots, first, results, (PyObject *)segment};
    clear_fields(mine, mine + sizeof mine / sizeof *mine);
    return PyErr_Occurred() ? NULL : Py_NewRef(done == 1 ? Py_True : Py_False);
}

/* -- calls of tape.jit --------------------------------------------------------------------------------------------------------------------- */


/* What a pattern is of, as tape/callables/matching.py has it. */
enum { AN_ARRAY, A_VARIABLE, A_NUMBER, AN_ARRAY_OF_NUMPY, A_STATIC, A_SEQUENCE, A_MAPPING };

static int alike(PyObject *x, PyObject *pattern, PyObject *arrays, PyObject *variables);

/* Tell whether an attribute equals something. */
static int
has(PyObject *x, PyObject *name, PyObject *wanted)
{
    PyObject *held = PyObject_GetAttr(x, name);
    int same = held == NULL ? 0 : held == wanted || PyObject_RichCompareBool(held, wanted, Py_NE) == 0;
    Py_XDECREF(held);
    return same;
}

/* Tell whether the items of a tuple or list (or of a dictionary under some keys) are like patterns. */
static int
all_alike(PyObject *items, PyObject *keys, PyObject *patterns, PyObject *arrays, PyObject *variables)
{
    if (!PyList_CheckExact(patterns)) {
        return 0;
    }
    Py_ssize_t n = PyList_GET_SIZE(patterns);
    int same = keys != NULL ? PyList_CheckExact(keys) && PyList_GET_SIZE(keys) == n && PyDict_GET_SIZE(items) == n : PySequence_Fast_GET_SIZE(items) == n;
    for (Py_ssize_t i = 0; same && i < n && i < PyList_GET_SIZE(patterns); i++) {
        PyObject *x = keys != NULL                           ? PyDict_GetItemWithError(items, PyList_GET_ITEM(keys, i))
                      : i < PySequence_Fast_GET_SIZE(items) ? PySequence_Fast_GET_ITEM(items, i)
                                                             : NULL;
        Py_XINCREF(x);
        same = x != NULL && alike(x, PyList_GET_ITEM(patterns, i), arrays, variables);
        Py_XDECREF(x);
    }
    return same;
}

/* Tell whether the keys of a dictionary are these in this order; 0 also where asking could run code. */
static int
keyed_as(PyObject *items, PyObject *order)
{
    PyObject *key, *wanted;
    Py_ssize_t at = 0, n = PyList_CheckExact(order) ? PyList_GET_SIZE(order) : -1;
    int same = PyDict_GET_SIZE(items) == n;
    for (Py_ssize_t i = 0; same && PyDict_Next(items, &at, &key, NULL); i++) {
        wanted = i < n ? PyList_GET_ITEM(order, i) : NULL;
        same = key == wanted || (wanted != NULL && PyUnicode_CheckExact(key) && PyUnicode_CheckExact(wanted) && PyUnicode_Compare(key, wanted) == 0);
    }
    return same;
}

/* Tell whether an argument is like a pattern, and put what the program takes of it into lists, as _match has it; 0 also where that is not found here. */
static int
alike(PyObject *x, PyObject *pattern, PyObject *arrays, PyObject *variables)
{
    if (!PyTuple_CheckExact(pattern) || PyTuple_GET_SIZE(pattern) != 3 || (PyObject *)Py_TYPE(x) != PyTuple_GET_ITEM(pattern, 1)) {
        return 0;
    }
    PyObject *what = PyTuple_GET_ITEM(pattern, 2);
    Handle *handle;
    switch (PyLong_AsLong(PyTuple_GET_ITEM(pattern, 0))) {
    case AN_ARRAY: return has(x, name_aval, what) && PyList_Append(arrays, x) == 0;
    case A_VARIABLE: return (handle = as_handle(x)) != NULL && ((Place *)handle->place)->kind == what && PyList_Append(variables, x) == 0;
    case A_NUMBER: return PyList_Append(arrays, x) == 0;
    case AN_ARRAY_OF_NUMPY:
        return PyTuple_CheckExact(what) && PyTuple_GET_SIZE(what) == 2 && has(x, name_shape, PyTuple_GET_ITEM(what, 0)) &&
               has(x, name_dtype, PyTuple_GET_ITEM(what, 1)) && PyList_Append(arrays, x) == 0;
    case A_STATIC: return x == what || PyObject_RichCompareBool(x, what, Py_NE) == 0;
    case A_SEQUENCE: return (PyTuple_Check(x) || PyList_Check(x)) && all_alike(x, NULL, what, arrays, variables);
    case A_MAPPING:
        return PyDict_CheckExact(x) && PyTuple_CheckExact(what) && PyTuple_GET_SIZE(what) == 3 && keyed_as(x, PyTuple_GET_ITEM(what, 0)) &&
               all_alike(x, PyTuple_GET_ITEM(what, 1), PyTuple_GET_ITEM(what, 2), arrays, variables);
    default: return 0;
    }
}

/* Tell whether a call is like the latest one, as Latest.recognises has it. */
static int
recognised(PyObject *latest, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject *arrays, PyObject *variables)
{
    PyObject *patterns = PyObject_GetAttr(latest, name_patterns), *names = PyObject_GetAttr(latest, name_keywords), *ordered = NULL;
    Py_ssize_t keywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames); /* of what only JAX takes apart there are no patterns */
    int same = patterns != NULL && names != NULL && PyList_CheckExact(patterns) &&
               PyList_GET_SIZE(patterns) == nargs + keywords && PyTuple_CheckExact(names) && PyTuple_GET_SIZE(names) == keywords;
    if (same && keywords) {
        same = PyObject_RichCompareBool(names, kwnames, Py_EQ) == 1 && (ordered = PyObject_GetAttr(latest, name_ordered)) != NULL &&
               PyList_CheckExact(ordered) && PyList_GET_SIZE(ordered) == keywords;
    }
    for (Py_ssize_t i = 0; same && i < nargs + keywords; i++) {
        Py_ssize_t at = i;
        if (i >= nargs) { /* in the order of their names, as JAX flattens dictionaries */
            at = PySequence_Index(kwnames, PyList_GET_ITEM(ordered, i - nargs));
            at = at < 0 ? at : nargs + at;
        }
        same = at >= 0 && alike(args[at], PyList_GET_ITEM(patterns, i), arrays, variables);
    }
    Py_XDECREF(patterns);
    Py_XDECREF(names);
    Py_XDECREF(ordered);
    return same;
}

/* Return the n-th item of a list (borrowed), which is a tuple of so many; NULL where it is not. */
static PyObject *
row(PyObject *list, Py_ssize_t i, Py_ssize_t size)
{
    PyObject *item = i < PyList_GET_SIZE(list) ? PyList_GET_ITEM(list, i) : NULL;
    return item != NULL && PyTuple_CheckExact(item) && PyTuple_GET_SIZE(item) == size ? item : NULL;
}

/* Tell whether a step can run for some Variables with everything else as it is, as Binding.suits has it; 0 also where Python is to look. */
static int
suits(Bound *bound, PyObject *given)
{
    Py_ssize_t n = PyList_GET_SIZE(given);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bound->pinned); i++) {
        PyObject *pin = row(bound->pinned, i, 2);
        if (pin == NULL || picked(given, PyTuple_GET_ITEM(pin, 0)) != PyTuple_GET_ITEM(pin, 1)) {
            return 0;
        }
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bound->leaves); i++) {
        PyObject *leaf = picked(given, PyList_GET_ITEM(bound->leaves, i));
        Handle *handle = leaf == NULL ? NULL : as_handle(leaf);
        if (handle == NULL || handle->segment != Py_None) {
            return 0;
        }
    }
    for (Py_ssize_t i = 0; bound->strangers != Py_None && i < n; i++) {
        PyObject *id = PyLong_FromVoidPtr(PyList_GET_ITEM(given, i));
        int there = id == NULL ? 1 : PySet_Contains(bound->strangers, id);
        Py_XDECREF(id);
        if (there != 0) {
            return 0;
        }
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bound->edges); i++) {
        PyObject *edge = row(bound->edges, i, 4), *const *parts = edge == NULL ? NULL : ((PyTupleObject *)edge)->ob_item;
        PyObject *content = edge == NULL ? NULL : looked_up(parts[0], parts[1], parts[2]);
        Py_XDECREF(content);
        if (content == NULL || content != parts[3]) {
            if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) {
                PyErr_Clear(); /* Python comes to the same, and says what it is */
            }
            return 0;
        }
    }
    Py_ssize_t count = PyList_GET_SIZE(bound->variables);
    if (PyList_GET_SIZE(bound->places) != count || !has(steps.hooks, name_hooks_count, bound->seen)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < count && i < PyList_GET_SIZE(bound->places); i++) {
        Handle *handle = as_handle(PyList_GET_ITEM(bound->variables, i));
        if (handle == NULL || handle->place != PyList_GET_ITEM(bound->places, i)) {
            return 0;
        }
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bound->looked); i++) {
        PyObject *look = row(bound->looked, i, 3);
        Handle *handle = look == NULL ? NULL : as_handle(PyTuple_GET_ITEM(look, 0));
        if (handle == NULL || handle->extra != PyTuple_GET_ITEM(look, 1) || extra_of(handle) == NULL) {
            return 0;
        }
        Handle *grad = as_handle(*of_extra(handle->extra, GRAD));
        PyObject *wanted = PyTuple_GET_ITEM(look, 2); /* ... if any will do */
        if (wanted != Py_Ellipsis && (grad == NULL ? *of_extra(handle->extra, GRAD) : ((Place *)grad->place)->kind) != wanted) {
            return 0;
        }
    }
    return 1;
}

/* Return the value of a Variable that is not pending (borrowed); NULL where it is. */
static PyObject *
present(PyObject *variable)
{
    Handle *handle = variable == NULL ? NULL : as_handle(variable);
    PyObject *value = handle == NULL ? Py_None : PyList_GET_ITEM(handle->cell, 0);
    return value == Py_None ? NULL : value;
}

/* Return the gradient in an Extra (borrowed), or NULL. */
static PyObject *
gradient_in(PyObject *extra)
{
    return (PyObject *)Py_TYPE(extra) == parts.extra ? *of_extra(extra, GRAD) : NULL;
}

/* Gather what the program of a step takes, as Binding.inputs has it, into `values` (new references): how many there are, -1 where one is not there
   yet, or is to be donated and somebody else could still reach it. */
static Py_ssize_t
gather(Bound *bound, PyObject *arrays, PyObject *given, PyObject **values, Py_ssize_t room)
{
    Py_ssize_t n = 0;
    PyObject *sources[] = {arrays, bound->read, bound->values, bound->grads};
    for (int part = 0; part < 4; part++) {
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(sources[part]); i++) {
            PyObject *item = PyList_GET_ITEM(sources[part], i);
            PyObject *value = part == 0 ? item : present(part == 1 ? picked(given, item) : part == 2 ? item : gradient_in(item));
            if (value == NULL || n == room) {
                clear_fields(values, values + n);
                return -1;
            }
            values[n++] = Py_NewRef(value);
        }
    }
    int shared = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bound->donated); i++) {
        Py_ssize_t at = PyLong_AsSsize_t(PyList_GET_ITEM(bound->donated, i));
        shared |= at < 0 || at >= n || Py_REFCNT(values[at]) > 2; /* in its cell, and here */
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bound->donors); i++) {
        Handle *handle = as_handle(PyList_GET_ITEM(bound->donors, i));
        shared |= handle == NULL || Py_REFCNT(handle->cell) > 1;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bound->donor_extras); i++) {
        PyObject *grad = gradient_in(PyList_GET_ITEM(bound->donor_extras, i));
        Handle *handle = grad == NULL ? NULL : as_handle(grad);
        shared |= handle == NULL || Py_REFCNT(handle->cell) > 1;
    }
    if (shared) {
        clear_fields(values, values + n);
        return -1;
    }
    return n;
}

/* Return the result of a list with a number (borrowed), in a row of some table; NULL with an exception. */
static PyObject *
result_of(PyObject *results, PyObject *number)
{
    PyObject *result = picked(results, number);
    if (result == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_IndexError, "a step has fewer results than it was traced with");
    }
    return result;
}

/* Return a new cell with the result of a row that ends with segment, place and number; NULL with an exception. */
static PyObject *
cell_of_result(PyObject *results, PyObject *number)
{
    PyObject *result = result_of(results, number), *cell = result == NULL ? NULL : PyList_New(1);
    if (cell != NULL) {
        PyList_SET_ITEM(cell, 0, Py_NewRef(result));
    }
    return cell;
}

/* Put the results of a run where they belong, and return what the step returns, as Binding._deliver has it. */
static PyObject *
delivered(Bound *bound, PyObject *results)
{
    Py_ssize_t writes = PyList_GET_SIZE(bound->written), clears = PyList_GET_SIZE(bound->cleared), news = PyList_GET_SIZE(bound->fresh), ready = 0;
    PyObject **before = PyMem_New(PyObject *, 3 * writes + 2 * clears + 1), **old = before, *leaves = PyList_New(news), *result = NULL;
    PyObject *cells = PyList_New(writes);
    int done = before != NULL && leaves != NULL && cells != NULL;
    for (; done && ready < news; ready++) {
        PyObject *made = row(bound->fresh, ready, 3), *cell = made == NULL ? NULL : cell_of_result(results, PyTuple_GET_ITEM(made, 2));
        PyObject *leaf = cell == NULL ? NULL : new_handle(PyTuple_GET_ITEM(made, 0), PyTuple_GET_ITEM(made, 1), cell);
        done = leaf != NULL;
        PyList_SET_ITEM(leaves, ready, leaf);
    }
    for (Py_ssize_t i = 0; done && i < writes; i++) {
        PyObject *change = row(bound->written, i, 4), *cell = change == NULL ? NULL : cell_of_result(results, PyTuple_GET_ITEM(change, 3));
        done = cell != NULL && is_a(PyTuple_GET_ITEM(change, 0), &Handle_type);
        PyList_SET_ITEM(cells, i, cell);
    }
    for (Py_ssize_t i = 0; done && i < writes; i++) { /* all of it, and then what was there is freed */
        PyObject *change = PyList_GET_ITEM(bound->written, i);
        Handle *handle = (Handle *)PyTuple_GET_ITEM(change, 0);
        *old++ = handle->segment;
        *old++ = handle->place;
        *old++ = handle->cell;
        handle->segment = Py_NewRef(PyTuple_GET_ITEM(change, 1));
        handle->place = Py_NewRef(PyTuple_GET_ITEM(change, 2));
        handle->cell = Py_NewRef(PyList_GET_ITEM(cells, i));
    }
    for (Py_ssize_t i = 0; done && i < clears; i++) {
        PyObject *extra = PyList_GET_ITEM(bound->cleared, i);
        if ((PyObject *)Py_TYPE(extra) == parts.extra) {
            *old++ = *of_extra(extra, GRAD);
            *old++ = *of_extra(extra, ASSIGNED);
            *of_extra(extra, GRAD) = Py_NewRef(Py_None);
            *of_extra(extra, ASSIGNED) = Py_NewRef(Py_False);
        }
    }
    if (before != NULL) {
        clear_fields(before, old);
        PyMem_Free(before);
    }
    if (done && bound->structure == Py_None) { /* one leaf */
        result = news == 1 ? Py_NewRef(PyList_GET_ITEM(leaves, 0)) : NULL;
    } else if (done) {
        result = PyObject_CallMethodOneArg(bound->structure, name_unflatten, leaves);
    }
    Py_XDECREF(cells);
    Py_XDECREF(leaves);
    if (result == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "a step has other results than it was traced with");
    }
    return result;
}

/* Tell whether the fields of a binding are what they are to be, and nothing but its program is to run. */
static int
bound_plainly(Bound *bound)
{
    for (PyObject **field = &bound->pinned; field <= &bound->cleared; field++) {
        if (*field == NULL || !PyList_CheckExact(*field)) {
            return 0;
        }
    }
    return bound->plainly == Py_True && bound->executable != NULL && bound->strangers != NULL && bound->seen != NULL && bound->structure != NULL &&
           bound->fresh != NULL && (bound->fresh == Py_None || PyList_CheckExact(bound->fresh)) &&
           (bound->strangers == Py_None || PySet_Check(bound->strangers)) && PyDict_GET_SIZE(runs.meters) == 0;
}

/* Tell whether no Variable is in a list twice. */
static int
each_once(PyObject *variables)
{
    Py_ssize_t n = PyList_GET_SIZE(variables);
    if (n > LEAVES) {
        PyObject *different = PySet_New(NULL);
        int once = different != NULL;
        for (Py_ssize_t i = 0; once && i < n; i++) {
            PyObject *id = PyLong_FromVoidPtr(PyList_GET_ITEM(variables, i));
            once = id != NULL && PySet_Add(different, id) == 0;
            Py_XDECREF(id);
        }
        once = once && PySet_GET_SIZE(different) == n;
        Py_XDECREF(different);
        return once;
    }
    for (Py_ssize_t i = 1; i < n; i++) {
        for (Py_ssize_t j = 0; j < i; j++) {
            if (PyList_GET_ITEM(variables, i) == PyList_GET_ITEM(variables, j)) {
                return 0;
            }
        }
    }
    return 1;
}

/* Tell whether a step was traced in the circumstances of this call, as Jitted.__call__ has it. */
static int
in_circumstances(PyObject *then, Thread *thread)
{
    if (!PyTuple_CheckExact(then) || PyTuple_GET_SIZE(then) != 3 || runs.rules == NULL ||
        PyObject_RichCompareBool(PyTuple_GET_ITEM(then, 0), PyTuple_GET_ITEM(thread->scope, 0), Py_EQ) != 1 ||
        !has(runs.rules, name_revision, PyTuple_GET_ITEM(then, 2))) {
        return 0;
    }
    PyObject *outset = thread->outset;
    if (PyTuple_CheckExact(outset) && PyTuple_GET_ITEM(outset, 0) == ((Changes *)told.changes)->epoch) { /* it is forgotten where a setting changes */
        return PyTuple_GET_ITEM(outset, 2) == PyTuple_GET_ITEM(then, 1);
    }
    PyObject *settings = PyObject_CallNoArgs(steps.configuration);
    Py_XDECREF(settings);
    return settings != NULL && settings == PyTuple_GET_ITEM(then, 1);
}

/* Run the program of a step and put its results where they belong. */
static PyObject *
run_step(Bound *bound, PyObject **values, Py_ssize_t n)
{
    PyObject *results = PyObject_Vectorcall(bound->executable, values + 1, (size_t)n | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL), *result = NULL;
    if (results == NULL) {
        if (PyErr_ExceptionMatches(steps.error)) {
            PyObject *type, *error, *trace;
            PyErr_Fetch(&type, &error, &trace);
            PyErr_NormalizeException(&type, &error, &trace);
            if (trace != NULL) {
                PyException_SetTraceback(error, trace);
            }
            result = PyObject_CallMethodOneArg((PyObject *)bound, name_failed, error);
            Py_CLEAR(result); /* it raises */
            Py_XDECREF(type);
            Py_XDECREF(error);
            Py_XDECREF(trace);
        }
        return NULL;
    }
    PyObject *got = PyObject_CallMethodNoArgs(steps.lock, name_acquire);
    if (got != NULL) {
        if (bound->fresh == Py_None) {
            result = PyObject_CallMethodOneArg((PyObject *)bound, name_deliver, results);
            if (result == NULL && PyList_GET_SIZE(bound->donated) > 0) { /* Ctrl-C before its first line, and the inputs are gone */
                PyObject *type, *value, *trace;
                PyErr_Fetch(&type, &value, &trace);
                PyObject *again = PyObject_CallMethodOneArg((PyObject *)bound, name_deliver, results);
                Py_XDECREF(again);
                PyErr_Restore(type, value, trace);
            }
        } else if (PyList_CheckExact(results)) {
            result = delivered(bound, results);
        } else {
            PyErr_SetString(PyExc_TypeError, "the program of a step returns a list");
        }
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyObject *gone = PyObject_CallMethodNoArgs(steps.lock, name_release);
        Py_XDECREF(gone);
        PyErr_Restore(type, value, trace);
    }
    Py_XDECREF(got);
    Py_DECREF(results);
    return result;
}

/* Call a function of tape.jit as it was called last, but for values, as Jitted.__call__ does; NULL without an exception where that is not so. */
static PyObject *
stepped(PyObject *jitted, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Thread *thread = steps.lock == NULL || told.changes == NULL || runs.in_trace == NULL ? NULL : this_thread();
    if (thread == NULL || begin.segment == NULL || !unobserved(thread, told.trace) || !unobserved(thread, told.caller) ||
        PyTuple_GET_ITEM(thread->scope, begin.observer) != Py_None || PyTuple_GET_ITEM(thread->scope, begin.notes) != Py_None) {
        return NULL;
    }
    PyObject *quick = PyObject_GetAttr(jitted, name_quick), *arrays = NULL, *variables = NULL, *made = NULL, *few[LEAVES + 1], **values = few;
    Bound *bound = quick != NULL && PyTuple_CheckExact(quick) && PyTuple_GET_SIZE(quick) == 3 ? (Bound *)PyTuple_GET_ITEM(quick, 0) : NULL;
    Py_ssize_t n = -1;
    if (bound == NULL || !is_a(bound, &Bound_type) || !bound_plainly(bound) || !in_circumstances(PyTuple_GET_ITEM(quick, 2), thread)) {
        goto end;
    }
    PyObject *traced = PyObject_CallNoArgs(runs.in_trace);
    Py_XDECREF(traced);
    if (traced != Py_False || (arrays = PyList_New(0)) == NULL || (variables = PyList_New(0)) == NULL ||
        !recognised(PyTuple_GET_ITEM(quick, 1), args, nargs, kwnames, arrays, variables) || !each_once(variables)) {
        goto end;
    }
    Py_ssize_t room = PyList_GET_SIZE(arrays) + PyList_GET_SIZE(bound->read) + PyList_GET_SIZE(bound->values) + PyList_GET_SIZE(bound->grads);
    if (room > LEAVES && (values = PyMem_New(PyObject *, room + 1)) == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    PyObject *got = PyObject_CallMethodNoArgs(steps.lock, name_acquire);
    if (got != NULL) {
        n = suits(bound, variables) ? gather(bound, arrays, variables, values + 1, room) : -1;
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyObject *gone = PyObject_CallMethodNoArgs(steps.lock, name_release);
        Py_XDECREF(gone);
        PyErr_Restore(type, value, trace);
        Py_DECREF(got);
    }
    if (n >= 0 && !PyErr_Occurred()) {
        PyObject *called = PyObject_GetAttr(jitted, name_called);
        PyObject *more = called == NULL ? NULL : PyNumber_Add(PyList_GET_ITEM(called, 0), number_one);
        if (more != NULL && PyList_SetItem(called, 0, more) == 0) {
            ((Counts *)runs.counts)->hits += 1;
            made = run_step(bound, values, n);
        }
        Py_XDECREF(called);
    }
    if (n > 0) {
        clear_fields(values + 1, values + 1 + n);
    }
    if (values != few) {
        PyMem_Free(values);
    }
end:
    Py_XDECREF(quick);
    Py_XDECREF(arrays);
    Py_XDECREF(variables);
    return made;
}

/* Tell what functions of tape.jit are called with. */
static PyObject *
stepping(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!counted("stepping", nargs, 8)) {
        return NULL;
    }
    PyObject **fields[] = {&steps.lock, &steps.hooks, &steps.configuration, &steps.error, &steps.item, &steps.length, &steps.get, &steps.attribute};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        Py_XSETREF(*fields[i], Py_NewRef(args[i]));
    }
    Py_RETURN_NONE;
}

static PyObject *
connect(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"variable",    "record", "begun", "node_of", "changes", "nobody",  "concrete", "arrays",   "kinds", "copied", "numpy", "generic",
                            "dtype", "marks",  "leaf_node", "extra", "caller",  "forward", "trace", "sequence", "growth", "follow", "copies", "x64",
                            "kinds_of_copies", "most", "staged", NULL};
    PyObject *variable, *record, *begun, *node_of, *changes, *nobody, *concrete, *arrays, *kinds, *copied, *numpy, *generic, *dtype, *array, *number, *leaf_node, *extra, *follow;
    PyObject *copies, *x64, *kinds_of_copies, *staged;
    Py_ssize_t most;
    Py_ssize_t caller, forward, trace;
    int sequence;
    PyObject *growth;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O!OOOOOO!O!O!OO!O!O!(OO)O!O!nnniOOO!OO!nO", names, &PyType_Type, &variable, &record, &begun, &node_of, &changes, &nobody,
                                     &PySet_Type, &concrete, &PySet_Type, &arrays, &PyDict_Type, &kinds, &copied, &PyType_Type, &numpy, &PyType_Type, &generic,
                                     &PyType_Type, &dtype, &array, &number,
                                     &PyType_Type, &leaf_node, &PyType_Type, &extra, &caller, &forward, &trace, &sequence, &growth, &follow,
                                     &PyDict_Type, &copies, &x64, &PyDict_Type, &kinds_of_copies, &most, &staged)) {
        return NULL;
    }
    if (!PyType_IsSubtype((PyTypeObject *)variable, &Handle_type)) {
        PyErr_SetString(PyExc_TypeError, "what the recorder makes is a Handle");
        return NULL;
    }
    for (int i = 0; i < EXTRA_FIELDS && !PyErr_Occurred(); i++) {
        parts.in_extra[i] = lies_at(extra, extra_fields[i]);
    }
    for (int i = 0; i < NODE_FIELDS && !PyErr_Occurred(); i++) {
        parts.in_node[i] = lies_at(leaf_node, node_fields[i]);
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_XSETREF(parts.extra, Py_NewRef(extra));
    Py_XSETREF(parts.node, Py_NewRef(leaf_node));
    Py_XSETREF(told.variable, Py_NewRef(variable));
    PyTypeObject *type = (PyTypeObject *)variable;
    while (spare.count > 0) { /* they may be of another class */
        PyObject_GC_Del(spare.variables[--spare.count]);
    }
    if (type->tp_basicsize == sizeof(Handle) && type->tp_itemsize == 0 && type->tp_dictoffset == 0 && type->tp_finalize == NULL && type->tp_del == NULL) {
        type->tp_dealloc = Variable_dealloc; /* it has the fields of a Handle and no others */
    }
    Py_XSETREF(told.record, Py_NewRef(record));
    Py_XSETREF(told.begun, Py_NewRef(begun));
    Py_XSETREF(told.staged, Py_NewRef(staged));
    Py_XSETREF(told.node_of, Py_NewRef(node_of));
    Py_XSETREF(told.changes, is_a(changes, &Changes_type) ? Py_NewRef(changes) : NULL);
    Py_XSETREF(told.nobody, Py_NewRef(nobody));
    Py_XSETREF(told.concrete, Py_NewRef(concrete));
    Py_XSETREF(told.arrays, Py_NewRef(arrays));
    Py_XSETREF(told.kinds, Py_NewRef(kinds));
    Py_XSETREF(told.copied, Py_NewRef(copied));
    Py_XSETREF(told.copies, Py_NewRef(copies));
    Py_XSETREF(told.x64, Py_NewRef(x64));
    Py_XSETREF(told.kinds_of_copies, Py_NewRef(kinds_of_copies));
    told.most = most;
    Py_XSETREF(told.numpy, Py_NewRef(numpy));
    Py_XSETREF(told.generic, Py_NewRef(generic));
    Py_XSETREF(told.dtype, Py_NewRef(dtype));
    Py_XSETREF(told.array_mark, Py_NewRef(array));
    Py_XSETREF(told.number_mark, Py_NewRef(number));
    told.caller = caller;
    told.forward = forward;
    told.trace = trace;
    told.sequence = sequence;
    Py_XSETREF(told.growth, Py_NewRef(growth));
    Py_XSETREF(told.follow, Py_NewRef(follow));
    Py_RETURN_NONE;
}

#define FAST(name, text) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, text}

static PyMethodDef functions[] = {
    FAST(record_one, "Record an op on one Variable."),
    FAST(record_two, "Record an op on two Variables."),
    {"record_number", (PyCFunction)(void (*)(void))record_number, METH_FASTCALL | METH_KEYWORDS, "Record an op on a Variable and a number."},
    FAST(record, "Record an op on a sequence of inputs."),
    FAST(handle, "Make a Variable of a segment, a place and a cell."),
    {"held", held, METH_O, "Return the slots of the cells to which somebody refers beside their dict."},
    {"gathered", gathered, METH_O, "Return the values in some cells."},
    FAST(unchanged, "Tell whether an array is what was copied."),
    FAST(stored, "Put results into cells."),
    FAST(handed, "Put results into cells of a segment that keeps nothing else."),
    FAST(launched, "Run what is pending by the program that is known for it."),
    {"launches", (PyCFunction)(void (*)(void))launches, METH_VARARGS | METH_KEYWORDS, "Tell what runs are made with."},
    FAST(asking, "Tell who asks for numbers."),
    {"begins", (PyCFunction)(void (*)(void))begins, METH_VARARGS | METH_KEYWORDS, "Tell what segments begin with."},
    {"emptied", emptied, METH_O, "Have a new segment hold nothing."},
    FAST(arrived, "Return what arrives at the leaves where a sweep ends."),
    FAST(replayed, "Write a sweep again from one root."),
    FAST(formed, "Make the state of an entry whose form is known."),
    {"planned", planned, METH_VARARGS, "Sweep back through entries whose sweep is nothing but their VJPs."},
    FAST(line_outside, "Return the file and line of the innermost frame outside the library."),
    FAST(leads_on, "Tell whether an edge leads to what it led to, or to what will do."),
    FAST(is_empty_in, "Tell whether what is read at a key of a place is an empty container."),
    FAST(are_of_kinds, "Tell whether what is read at some keys of a place is of the classes that are told."),
    FAST(are_alike, "Tell whether objects are of the classes that are told, and hold nothing under some names."),
    FAST(ran, "Run entries as long as NumPy runs them."),
    FAST(needed, "Return the lines of a tape that slots depend on."),
    FAST(through, "Return the lines of a tape that sweeps go through."),
    FAST(written_lines, "Make the lines of a sweep from its instructions."),
    FAST(extended, "Return a table of places with further ones."),
    {"structured", (PyCFunction)(void (*)(void))structured, METH_VARARGS | METH_KEYWORDS, "Tell what states are."},
    {"continues", (PyCFunction)(void (*)(void))continues, METH_VARARGS | METH_KEYWORDS, "Tell what states are made with that were not met."},
    FAST(regained, "Write a call of gradients() again."),
    FAST(sweeping, "Tell what sweeps are written again with."),
    FAST(emitted, "Write the plan of a segment again."),
    FAST(swept_on, "Sweep segments as they were swept before."),
    {"forgot", forgot, METH_O, "Have a segment that was swept forget all, if it is known to be spent."},
    {"assigned", assigned, METH_O, "Set every gradient to its sum."},
    FAST(lacking, "Return the Variables that are to enter a segment."),
    FAST(updated, "Do an update again."),
    FAST(overwritten, "Have a Variable be what an augmented assignment makes of it."),
    FAST(entered, "Enter Variables into a segment."),
    FAST(stepping, "Tell what functions of tape.jit are called with."),
    {"connect", (PyCFunction)(void (*)(void))connect, METH_VARARGS | METH_KEYWORDS, "Tell what Python has."},
    {NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tape._recorder", "The recorder in C.", -1, functions};

PyMODINIT_FUNC
PyInit__recorder(void)
{
    struct { PyObject **name; const char *text; } names[] = {
        {&thread_key, "tape._recorder"}, {&name_aval, "aval"},           {&name_shape, "shape"},
        {&name_scalars, "scalars"},      {&name_positions, "positions"}, {&name_rest, "rest"}, {&name_names, "names"},
        {&name_state, "state"},          {&name_results, "results"},
        {&name_released, "released"},    {&name_cut, "cut"},         {&name_made, "made"},
        {&name_ends, "ends"},      {&name_externals, "externals"},  {&name_entries, "entries"}, {&name_table, "table"},
        {&name_single, "single"}, {&name_fill, "fill"},  {&name_several, "several"},      {&name_visible, "visible"},
        {&name_cache, "_cache"},   {&name_vjp, "vjp"},              {&name_own_kinds, "_kinds"}, {&name_kinds, "kinds"},
        {&name_kernel_of, "kernel_of"}, {&name_filename, "co_filename"}, {&name_limit, "LIMIT"},
        {&name_forms, "forms"},    {&name_leaf, "leaf"},            {&name_now, "now"},
        {&name_light, "light"},    {&name_host, "_host"},           {&name_program, "program"}, {&name_look, "look"},
        {&name_acquire, "acquire"}, {&name_release, "release"},     {&name_append, "append"},
        {&name_before, "before"},   {&name_later, "later"},         {&name_others, "others"},
        {&name_count, "_count"},   {&name_room, "_limit"},          {&name_revision, "_revision"},
        {&name_backward, "backward"}, {&name_create_graph, "create_graph"}, {&name_run, "run"},
        {&name_places, "places"},  {&name_slots, "slots"},          {&name_first, "first"}, {&name_step, "step"},
        {&name_segment, "segment"}, {&name_patterns, "_patterns"}, {&name_keywords, "_names"}, {&name_ordered, "_ordered"},
        {&name_quick, "_quick"}, {&name_called, "_called"}, {&name_failed, "failed"}, {&name_unflatten, "unflatten"},
        {&name_hooks_count, "count"}, {&name_contents, "cell_contents"}, {&name_dtype, "dtype"}, {&name_deliver, "_deliver"}, {&name_seeds, "seeds"},
        {&name_order, "order"}, {&name_spent, "spent"}, {&name_value, "value"},
        {&name_plan, "plan"}, {&name_leaves, "leaves"}, {&name_straight, "straight"}, {&name_hazard, "hazard"}, {&name_instructions, "instructions"},
        {&name_astype, "astype"}, {&name_setflags, "setflags"}, {&name_in_order, "C"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if ((*names[i].name = PyUnicode_InternFromString(names[i].text)) == NULL) {
            return NULL;
        }
    }
    if ((number_one = PyLong_FromLong(1)) == NULL) {
        return NULL;
    }
    PyTypeObject *types[] = {&Bound_type, &Choice_type, &Counts_type, &Handle_type,  &Place_type, &Kind_type,  &Step_type, &State_type,
                             &Segment_type, &Changes_type, &Local_type, &Function_type, &Numbers_type, &Buffered_type, &Gradient_type, &Value_type};
    PyObject *made = PyModule_Create(&module);
    Thread_type.tp_flags &= ~Py_TPFLAGS_BASETYPE;
    Function_type.tp_flags &= ~Py_TPFLAGS_BASETYPE;
    Function_type.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
    if (made == NULL || PyType_Ready(&Thread_type) < 0 || ready_attribute(&Gradient_type) < 0 || ready_attribute(&Value_type) < 0) {
        Py_XDECREF(made);
        return NULL;
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (types[i]->tp_new == NULL) {
            types[i]->tp_new = PyBaseObject_Type.tp_new; /* the classes of Python above it have an __init__ of their own */
        }
        if (PyModule_AddType(made, types[i]) < 0) {
            Py_CLEAR(made);
            return NULL;
        }
    }
    if (PyModule_AddIntConstant(made, "CONTRACT", CONTRACT) < 0) {
        Py_CLEAR(made);
    }
    return made;
}
