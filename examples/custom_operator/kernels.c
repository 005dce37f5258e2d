/* Two operations of one's own in C: an element-wise one with its gradient, and a search by rows.
 *
 *     cc -O3 -shared -fPIC -I FOLDER -o libkernels.so kernels.c -lm
 *
 * FOLDER is what `python -c "import weft as wf; print(wf.custom.include_folder())"` prints.
 */
#include <math.h>

#include "weft_kernel.h"

WEFT_KERNEL_LIBRARY

/* softclip(x) = limit * tanh(x / limit), written once for each dtype. */

#define SOFTCLIP(SUFFIX, REAL, TANH)                                                               \
  struct softclip_##SUFFIX {                                                                       \
    const REAL *x;                                                                                 \
    REAL *y;                                                                                       \
    REAL limit;                                                                                    \
  };                                                                                               \
                                                                                                   \
  static void softclip_range_##SUFFIX(void *user, int64_t begin, int64_t end) {                    \
    const struct softclip_##SUFFIX *job = user;                                                    \
    for (int64_t i = begin; i < end; ++i) job->y[i] = job->limit * TANH(job->x[i] / job->limit);   \
  }                                                                                                \
                                                                                                   \
  WEFT_EXPORT int softclip_##SUFFIX(weft_context *context, const weft_buffer *operands,            \
                                    const weft_buffer *results) {                                  \
    struct softclip_##SUFFIX job = {operands[0].data, results[0].data,                             \
                                    (REAL)weft_real(context, "limit", 1.0)};                       \
    if (!(job.limit > 0)) return weft_fail(context, "limit must be positive");                     \
    weft_parallel_for(context, weft_elements(&operands[0]), 16384, softclip_range_##SUFFIX, &job); \
    return WEFT_OK;                                                                                \
  }                                                                                                \
                                                                                                   \
  /* The tangent t of x becomes t * (1 - (y / limit)^2). */                                        \
  WEFT_EXPORT int softclip_slope_##SUFFIX(weft_context *context, const weft_buffer *operands,      \
                                          const weft_buffer *results) {                            \
    const REAL *t = operands[0].data, *y = operands[1].data;                                       \
    REAL *out = results[0].data;                                                                   \
    const REAL limit = (REAL)weft_real(context, "limit", 1.0);                                     \
    for (int64_t i = 0, n = weft_elements(&operands[0]); i < n; ++i)                               \
      out[i] = t[i] * (1 - (y[i] / limit) * (y[i] / limit));                                       \
    return WEFT_OK;                                                                                \
  }

SOFTCLIP(f32, float, tanhf)
SOFTCLIP(f64, double, tanh)

/* nearest(x, codes)[i] is the row of codes [k, d] that is closest to row i of x [n, d]. */

WEFT_EXPORT int nearest_shape(weft_context *context, const weft_type *operands,
                              weft_type *results) {
  const weft_type *x = &operands[0], *codes = &operands[1];
  if (x->rank != 2 || codes->rank != 2) return weft_fail(context, "x and codes must be matrices");
  if (x->shape[1] != codes->shape[1])
    return weft_fail(context, "rows of x and of codes must have the same length");
  if (codes->shape[0] == 0) return weft_fail(context, "there are no codes");
  results[0].dtype = WEFT_INT64;
  results[0].rank = 1;
  results[0].shape[0] = x->shape[0];
  return WEFT_OK;
}

struct nearest {
  weft_context *context;
  const float *x, *codes;
  int64_t *out, count, width;
};

static void nearest_rows(void *user, int64_t begin, int64_t end) {
  const struct nearest *job = user;
  for (int64_t row = begin; row < end; ++row) {
    const float *x = job->x + row * job->width;
    float best = INFINITY;
    int64_t place = -1;
    for (int64_t code = 0; code < job->count; ++code) {
      const float *c = job->codes + code * job->width;
      float distance = 0;
      for (int64_t i = 0; i < job->width; ++i) distance += (x[i] - c[i]) * (x[i] - c[i]);
      if (distance < best) best = distance, place = code;
    }
    if (place < 0) weft_fail(job->context, "a row is infinitely far from all codes, or NaN");
    job->out[row] = place;
  }
}

WEFT_EXPORT int nearest_f32(weft_context *context, const weft_buffer *operands,
                            const weft_buffer *results) {
  struct nearest job = {context,         operands[0].data,     operands[1].data,
                        results[0].data, operands[1].shape[0], operands[1].shape[1]};
  weft_parallel_for(context, operands[0].shape[0], 64, nearest_rows, &job);
  return WEFT_OK;
}
