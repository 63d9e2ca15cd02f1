/* Unit vectors in eight bits, and their products with a query, without the interpreter's lock.
 *
 * What is looked through is a quarter of the memory, and memory is what a search waits for. How much a vector lost is
 * known, so that vectors.py, which is the authority on what is found, can tell whom it has to compare in full.
 * The caller owns every buffer; nothing is kept from one call to the next.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>

static void run_pack(const float *units, int64_t count, int64_t size, int8_t *rows, float *scale, float *loss)
{
    for (int64_t i = 0; i < count; i++) {
        const float *unit = units + i * size;
        int8_t *row = rows + i * size;
        float most = 0;
        double lost = 0;
        for (int64_t j = 0; j < size; j++) {
            float here = fabsf(unit[j]);
            most = here > most ? here : most;
        }
        float step = most / 127;
        float inverse = step > 0 ? 1 / step : 0;
        for (int64_t j = 0; j < size; j++) {
            float level = rintf(unit[j] * inverse);
            level = level > 127 ? 127 : level < -127 ? -127 : level;
            row[j] = (int8_t)level;
            double off = (double)unit[j] - (double)level * step;
            lost += off * off;
        }
        scale[i] = step;
        loss[i] = (float)sqrt(lost);
    }
}

/* pack(units, dimension, rows, scale, loss): each unit vector as eight-bit steps, and the length of what they miss. */
static PyObject *pack(PyObject *self, PyObject *args)
{
    Py_buffer units, rows, scale, loss;
    long long size;
    int sound;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*Lw*w*w*", &units, &size, &rows, &scale, &loss)) return NULL;
    int64_t count = size > 0 ? units.len / (4 * size) : 0;
    sound = size > 0 && rows.len >= count * size && scale.len >= 4 * count && loss.len >= 4 * count;
    if (sound) {
        Py_BEGIN_ALLOW_THREADS
        run_pack(units.buf, count, size, rows.buf, scale.buf, loss.buf);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "the arrays for the result are too short");
    }
    PyBuffer_Release(&units);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&scale);
    PyBuffer_Release(&loss);
    if (!sound) return NULL;
    Py_RETURN_NONE;
}

/* The caller has made the query small enough for the sum to fit. */
static void run_dots(const int8_t *rows, const float *scale, int64_t count, int64_t size, const int16_t *query,
                     float step, float *out)
{
    for (int64_t i = 0; i < count; i++) {
        const int8_t *row = rows + i * size;
        int32_t sum = 0;
        for (int64_t j = 0; j < size; j++) sum += (int32_t)(int16_t)row[j] * (int32_t)query[j];
        out[i] = (float)sum * scale[i] * step;
    }
}

/* dots(rows, scale, query, step, out): the products of packed rows with a query of sixteen-bit steps. */
static PyObject *dots(PyObject *self, PyObject *args)
{
    Py_buffer rows, scale, query, out;
    double step;
    int sound;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*dw*", &rows, &scale, &query, &step, &out)) return NULL;
    int64_t size = query.len / 2, count = out.len / 4;
    sound = size > 0 && rows.len >= count * size && scale.len >= 4 * count;
    if (sound) {
        Py_BEGIN_ALLOW_THREADS
        run_dots(rows.buf, scale.buf, count, size, query.buf, (float)step, out.buf);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "there are fewer rows than results");
    }
    PyBuffer_Release(&rows);
    PyBuffer_Release(&scale);
    PyBuffer_Release(&query);
    PyBuffer_Release(&out);
    if (!sound) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"pack", pack, METH_VARARGS, "Unit vectors in eight bits."},
    {"dots", dots, METH_VARARGS, "Products of packed vectors with a query."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_dots", "Products of unit vectors.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__dots(void) { return PyModule_Create(&module); }
