/* Kernels of Weft operators in C: the whole interface.
 *
 * A library is any shared library that exports functions of type `weft_kernel`, and, by the line
 * WEFT_KERNEL_LIBRARY in one of its files, the version of this interface it was built for:
 *
 *     #include "weft_kernel.h"
 *
 *     WEFT_KERNEL_LIBRARY
 *
 *     WEFT_EXPORT int scale_f32(weft_context *context, const weft_buffer *operands,
 *                               const weft_buffer *results) {
 *       const float *x = operands[0].data;
 *       float *y = results[0].data;
 *       const float factor = (float)weft_real(context, "factor", 1.0);
 *       for (int64_t i = 0, n = weft_elements(&operands[0]); i < n; ++i) y[i] = factor * x[i];
 *       return WEFT_OK;
 *     }
 *
 * Build it with `cc -O3 -shared -fPIC -I FOLDER -o libscale.so scale.c`, where FOLDER is
 * what `python -c "import weft as wf; print(wf.custom.include_folder())"` prints.
 *
 * What a kernel may rely on: operands and results are dense and row-major, as their strides say;
 * results share no memory with operands and hold no values yet; nothing moves until it returns.
 * What it must keep to: it writes every element of every result, writes to nothing else, keeps no
 * pointer, and does not call Python, as it runs without the interpreter's lock. It may be called by
 * several threads at once, on different buffers. A C++ exception must not leave it.
 */
#ifndef WEFT_KERNEL_H
#define WEFT_KERNEL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Stands before each function that Weft looks for; in C++ it also keeps the name as it is. */
#ifdef __cplusplus
#define WEFT_LINKAGE extern "C"
#else
#define WEFT_LINKAGE
#endif
#if defined(_WIN32)
#define WEFT_EXPORT WEFT_LINKAGE __declspec(dllexport)
#else
#define WEFT_EXPORT WEFT_LINKAGE __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever a library built for the old interface would not run under the new one. */
#define WEFT_KERNEL_ABI 1
#define WEFT_MAX_RANK 16

#define WEFT_OK 0
#define WEFT_ERROR 1

typedef enum weft_dtype {
  WEFT_BOOL = 0,
  WEFT_INT8 = 1,
  WEFT_INT16 = 2,
  WEFT_INT32 = 3,
  WEFT_INT64 = 4,
  WEFT_UINT8 = 5,
  WEFT_UINT16 = 6,
  WEFT_UINT32 = 7,
  WEFT_UINT64 = 8,
  WEFT_FLOAT16 = 9,
  WEFT_BFLOAT16 = 10,
  WEFT_FLOAT32 = 11,
  WEFT_FLOAT64 = 12,
  WEFT_COMPLEX64 = 13,
  WEFT_COMPLEX128 = 14
} weft_dtype;

/* A tensor: `shape` and `strides` have `rank` entries each; strides count elements. */
typedef struct weft_buffer {
  void *data;
  int32_t dtype;
  int32_t rank;
  const int64_t *shape;
  const int64_t *strides;
} weft_buffer;

/* A type: what a shape rule is given of each operand, and says of each result. */
typedef struct weft_type {
  int32_t dtype;
  int32_t rank;
  int64_t shape[WEFT_MAX_RANK];
} weft_type;

typedef enum weft_attribute_kind {
  WEFT_INTEGERS = 0, /* int64_t[count]; booleans are 0 and 1 */
  WEFT_REALS = 1,    /* double[count] */
  WEFT_TEXT = 2      /* char[count], and a zero behind it */
} weft_attribute_kind;

/* An attribute of the call; a single number is one of a list of length 1. */
typedef struct weft_attribute {
  const char *name;
  const void *data;
  int64_t count;
  int64_t kind;
} weft_attribute;

typedef struct weft_context weft_context;

/* One stretch of a divided range, from `begin` to before `end`. */
typedef void (*weft_body)(void *user, int64_t begin, int64_t end);

struct weft_context {
  int32_t abi;
  int32_t attribute_count;
  const weft_attribute *attributes;
  /* Runs `body` over [0, extent) in stretches of `grain`, on the threads of Weft's pool; returns
   * when all is done. The borders depend on extent and grain alone. */
  void (*parallel_for)(weft_context *, int64_t extent, int64_t grain, weft_body body, void *user);
  /* Notes why the call fails, from any thread; the first message counts. Gives WEFT_ERROR. */
  int (*fail)(weft_context *, const char *message);
  void *reserved[4];
};

/* Computes the results; WEFT_OK, or anything else to stop the program with an error. */
typedef int (*weft_kernel)(weft_context *, const weft_buffer *operands, const weft_buffer *results);

/* Fills in the types of the results; `reserved` and `parallel_for` are not to be used. */
typedef int (*weft_shape_rule)(weft_context *, const weft_type *operands, weft_type *results);

#define WEFT_KERNEL_LIBRARY                                                                        \
  WEFT_EXPORT int32_t weft_kernel_abi(void);                                                       \
  WEFT_EXPORT int32_t weft_kernel_abi(void) { return WEFT_KERNEL_ABI; }

static inline int weft_fail(weft_context *context, const char *message) {
  return context->fail(context, message);
}

static inline void weft_parallel_for(weft_context *context, int64_t extent, int64_t grain,
                                     weft_body body, void *user) {
  context->parallel_for(context, extent, grain, body, user);
}

static inline int64_t weft_elements(const weft_buffer *buffer) {
  int64_t total = 1;
  for (int32_t axis = 0; axis < buffer->rank; ++axis) total *= buffer->shape[axis];
  return total;
}

static inline const weft_attribute *weft_find(const weft_context *context, const char *name) {
  for (int32_t i = 0; i < context->attribute_count; ++i)
    if (strcmp(context->attributes[i].name, name) == 0) return &context->attributes[i];
  return NULL;
}

static inline int64_t weft_integer(const weft_context *context, const char *name,
                                   int64_t otherwise) {
  const weft_attribute *found = weft_find(context, name);
  if (found == NULL || found->kind != WEFT_INTEGERS || found->count < 1) return otherwise;
  return ((const int64_t *)found->data)[0];
}

static inline double weft_real(const weft_context *context, const char *name, double otherwise) {
  const weft_attribute *found = weft_find(context, name);
  if (found == NULL || found->kind != WEFT_REALS || found->count < 1) return otherwise;
  return ((const double *)found->data)[0];
}

static inline const char *weft_text(const weft_context *context, const char *name,
                                    const char *otherwise) {
  const weft_attribute *found = weft_find(context, name);
  return found == NULL || found->kind != WEFT_TEXT ? otherwise : (const char *)found->data;
}

#ifdef __cplusplus
}
#endif

#endif
