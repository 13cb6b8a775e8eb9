/* Arithmetic on vectors. See reductions.h.
 *
 * Each function is a plain loop that the compiler vectorises. On x86 and Linux it does so once for each of three
 * instruction sets, of which the loader takes the best one that the processor has. Nothing is contracted
 * (-ffp-contract=off): a product and a sum round twice, on every processor alike.
 */
#include "reductions.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#define VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
/* Where there is a fused multiply-add, as in avx512f, GCC 12 makes some of complex products, whatever it is told. */
#define UNFUSED __attribute__((target_clones("avx2", "default")))
#else
#define VECTORS
#define UNFUSED
#endif
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* it warns of each loop that it does not vectorise */
#define NO_OVERLAP _Pragma("clang loop vectorize(assume_safety)")
#else
#define NO_OVERLAP _Pragma("GCC ivdep") /* results may go to x or y, but nowhere between */
#endif

/* A line for each dtype: its name in mpicoll/arrays/dtypes.py, its bytes, and what combines two of its values. Sums and
 * products of 16-bit floats are those of float32. */
#define DTYPE_TABLE(ROW)                                                                                               \
    ROW(BOOL, "bool", 1, {[LAND] = land_8, [LOR] = lor_8, [LXOR] = lxor_8})                                            \
    ROW(INT8, "int8", 1, OF_INTEGER(8, i))                                                                             \
    ROW(INT16, "int16", 2, OF_INTEGER(16, i))                                                                          \
    ROW(INT32, "int32", 4, OF_INTEGER(32, i))                                                                          \
    ROW(INT64, "int64", 8, OF_INTEGER(64, i))                                                                          \
    ROW(UINT8, "uint8", 1, OF_INTEGER(8, u))                                                                           \
    ROW(UINT16, "uint16", 2, OF_INTEGER(16, u))                                                                        \
    ROW(UINT32, "uint32", 4, OF_INTEGER(32, u))                                                                        \
    ROW(UINT64, "uint64", 8, OF_INTEGER(64, u))                                                                        \
    ROW(FLOAT16, "float16", 2, {sum_f32, prod_f32, min_float16, max_float16})                                          \
    ROW(BFLOAT16, "bfloat16", 2, {sum_f32, prod_f32, min_bfloat16, max_bfloat16})                                      \
    ROW(FLOAT32, "float32", 4, {sum_f32, prod_f32, min_f32, max_f32})                                                  \
    ROW(FLOAT64, "float64", 8, {sum_f64, prod_f64, min_f64, max_f64})                                                  \
    ROW(COMPLEX64, "complex64", 8, {sum_c32, prod_c32})                                                                \
    ROW(COMPLEX128, "complex128", 16, {sum_c64, prod_c64})
#define OF_INTEGER(BITS, SIGN)                                                                                         \
    {sum_##BITS, prod_##BITS, min_##SIGN##BITS, max_##SIGN##BITS, band_##BITS, bor_##BITS, bxor_##BITS, land_##BITS,   \
     lor_##BITS, lxor_##BITS}
#define NUMBER(NAME, ...) NAME,
enum { DTYPE_TABLE(NUMBER) DTYPES };

/* One function for each type and operation. E is the result for a and b. If there is a copy, it is written in the same
 * pass: a pass of its own would take as long again. */
#define COMBINE(...) COMBINE_ON(VECTORS, __VA_ARGS__)
#define COMBINE_ON(TARGETS, NAME, T, E)                                                                                \
    TARGETS static void NAME(const void *xs, const void *ys, void *outs, void *copies, size_t n) {                     \
        typedef T Number ANYWHERE;                                                                                     \
        const Number *x = xs, *y = ys;                                                                                 \
        Number *out = outs, *copy = copies;                                                                            \
        if (copy) {                                                                                                    \
            NO_OVERLAP                                                                                                 \
            for (size_t i = 0; i < n; i++) {                                                                           \
                T a = x[i], b = y[i], result = E;                                                                      \
                out[i] = result, copy[i] = result;                                                                     \
            }                                                                                                          \
        } else {                                                                                                       \
            NO_OVERLAP                                                                                                 \
            for (size_t i = 0; i < n; i++) {                                                                           \
                T a = x[i], b = y[i], result = E;                                                                      \
                out[i] = result;                                                                                       \
            }                                                                                                          \
        }                                                                                                              \
    }

#define FOR_ALL(OF, ...)                                                                                               \
    OF(8, __VA_ARGS__) OF(16, __VA_ARGS__) OF(32, __VA_ARGS__) OF(64, __VA_ARGS__)

/* Integers wrap around, so signed and unsigned ones have one sum and one product: that of unsigned ones, which C
 * defines. (16-bit factors would be promoted to int, whose product may overflow.) */
#define INTEGERS(BITS, ...)                                                                                            \
    COMBINE(sum_##BITS, uint##BITS##_t, a + b)                                                                         \
    COMBINE(prod_##BITS, uint##BITS##_t, (uint64_t)a * b)                                                              \
    COMBINE(max_i##BITS, int##BITS##_t, a > b ? a : b)                                                                 \
    COMBINE(min_i##BITS, int##BITS##_t, a < b ? a : b)                                                                 \
    COMBINE(max_u##BITS, uint##BITS##_t, a > b ? a : b)                                                                \
    COMBINE(min_u##BITS, uint##BITS##_t, a < b ? a : b)                                                                \
    COMBINE(band_##BITS, uint##BITS##_t, a & b)                                                                        \
    COMBINE(bor_##BITS, uint##BITS##_t, a | b)                                                                         \
    COMBINE(bxor_##BITS, uint##BITS##_t, a ^ b)                                                                        \
    COMBINE(land_##BITS, uint##BITS##_t, (a != 0) & (b != 0))                                                          \
    COMBINE(lor_##BITS, uint##BITS##_t, (a != 0) | (b != 0))                                                           \
    COMBINE(lxor_##BITS, uint##BITS##_t, (a != 0) ^ (b != 0))
FOR_ALL(INTEGERS, )

/* The first NaN is the result. Of two zeros, +0 is the larger one: equal numbers differ in the sign of zero alone, so
 * the bits that both have are those of the larger one, and the bits that one of them has those of the smaller one. */
#define FLOATS(BITS, T)                                                                                                \
    static inline T together_##BITS(T a, T b, int both) {                                                              \
        uint##BITS##_t x, y;                                                                                           \
        memcpy(&x, &a, sizeof a);                                                                                      \
        memcpy(&y, &b, sizeof b);                                                                                      \
        x = both ? x & y : x | y;                                                                                      \
        memcpy(&a, &x, sizeof a);                                                                                      \
        return a;                                                                                                      \
    }                                                                                                                  \
    COMBINE(sum_f##BITS, T, a + b)                                                                                     \
    COMBINE(prod_f##BITS, T, a *b)                                                                                     \
    COMBINE(max_f##BITS, T, a == b ? together_##BITS(a, b, 1) : (a > b || a != a) ? a : b)                             \
    COMBINE(min_f##BITS, T, a == b ? together_##BITS(a, b, 0) : (a < b || a != a) ? a : b)                             \
    typedef struct { T real, imag; } Complex##BITS;                                                                    \
    static inline Complex##BITS product_##BITS(Complex##BITS a, Complex##BITS b) {                                     \
        return (Complex##BITS){a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};                  \
    }                                                                                                                  \
    static void sum_c##BITS(const void *x, const void *y, void *out, void *copy, size_t n) {                           \
        sum_f##BITS(x, y, out, copy, 2 * n);                                                                           \
    }                                                                                                                  \
    COMBINE_ON(UNFUSED, prod_c##BITS, Complex##BITS, product_##BITS(a, b))                                             \
    VECTORS static void scale_f##BITS(T *x, T factor, size_t n) {                                                      \
        for (size_t i = 0; i < n; i++) x[i] *= factor;                                                                 \
    }                                                                                                                  \
    UNFUSED static void scale_c##BITS(Complex##BITS *x, Complex##BITS factor, size_t n) {                              \
        for (size_t i = 0; i < n; i++) x[i] = product_##BITS(x[i], factor);                                            \
    }                                                                                                                  \
    VECTORS static void divide_f##BITS(void *xs, T divisor, size_t n) {                                                \
        typedef T Number ANYWHERE;                                                                                     \
        Number *x = xs;                                                                                                \
        for (size_t i = 0; i < n; i++) x[i] /= divisor;                                                                \
    }
FLOATS(32, float)
FLOATS(64, double)

/* Division of integers toward zero, by multiplication. The divisor is at least 2.
 *
 * In floats: a number that is half a unit further from zero has a quotient that is at least 0.5 / divisor from each
 * whole number. Its two roundings are much smaller: of 16-bit numbers in a float, and of 32-bit ones in a double. */
#define DIVIDE(NAME, T, WIDE, HALF)                                                                                    \
    VECTORS static void NAME(void *xs, int divisor, size_t n) {                                                        \
        typedef T Number ANYWHERE;                                                                                     \
        Number *x = xs;                                                                                                \
        WIDE by = 1 / (WIDE)divisor, half = 1 / (WIDE)2;                                                               \
        for (size_t i = 0; i < n; i++) x[i] = (T)(((WIDE)x[i] + (HALF)) * by);                                         \
    }
#define AWAY_FROM_0 (x[i] < 0 ? -half : half)
DIVIDE(divide_i16, int16_t, float, AWAY_FROM_0)
DIVIDE(divide_i32, int32_t, double, AWAY_FROM_0)
DIVIDE(divide_u16, uint16_t, float, half)
DIVIDE(divide_u32, uint32_t, double, half)

/* In integers: with c the next whole number above 2^p / divisor, m * c / 2^p is above m / divisor by at most m / 2^p,
 * which must be less than 1 / divisor, or equal where the quotient is whole. m is a magnitude. (Granlund and Montgomery,
 * "Division by invariant integers using multiplication", PLDI 1994.) For 8 bits p is 16: where the divisor is too large for that, all quotients are 0. For 64
 * bits p is 63 + l, with 2^(l-1) < divisor <= 2^l. The numbers without a sign have one bit more, and so has their c,
 * which is 2^64 more than `c`. */
#define DIVIDE_8(NAME, T)                                                                                              \
    VECTORS static void NAME(T *x, int divisor, size_t n) {                                                            \
        uint16_t c = (uint16_t)((1 << 16) / divisor + 1);                                                              \
        for (size_t i = 0; i < n; i++) {                                                                               \
            int16_t a = x[i], m = (int16_t)(a < 0 ? -a : a), quotient = (int16_t)((uint32_t)m * c >> 16);              \
            x[i] = (T)(a < 0 ? -quotient : quotient);                                                                  \
        }                                                                                                              \
    }
DIVIDE_8(divide_i8, int8_t)
DIVIDE_8(divide_u8, uint8_t)

__extension__ typedef unsigned __int128 Product;
static uint64_t upper_half(uint64_t a, uint64_t b) { return (uint64_t)((Product)a * b >> 64); }
static int bits_of(int divisor) {
    int l = 1;
    while (l < 31 && 1 << l < divisor) l++;
    return l;
}

static void divide_i64(void *xs, int divisor, size_t n) {
    typedef int64_t Number ANYWHERE;
    Number *x = xs;
    int l = bits_of(divisor);
    uint64_t c = (uint64_t)(((Product)1 << (63 + l)) / (unsigned)divisor) + 1;
    for (size_t i = 0; i < n; i++) {
        uint64_t sign = (uint64_t)(x[i] >> 63), m = ((uint64_t)x[i] ^ sign) - sign;
        x[i] = (int64_t)(((upper_half(m, c) >> (l - 1)) ^ sign) - sign);
    }
}

static void divide_u64(void *xs, int divisor, size_t n) {
    typedef uint64_t Number ANYWHERE;
    Number *x = xs;
    int l = bits_of(divisor);
    uint64_t c = (uint64_t)(((((Product)1 << l) - (unsigned)divisor) << 64) / (unsigned)divisor) + 1;
    for (size_t i = 0; i < n; i++) {
        uint64_t product = upper_half(x[i], c); /* with 2^64 more it is x[i] more, which may be too much for 64 bits */
        x[i] = (((x[i] - product) >> 1) + product) >> (l - 1);
    }
}

/* 16-bit floats. All NaNs of a result have the same bits. */

VECTORS static void widen_bfloat16(const Short *from, float *to, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(&to[i], &bits, 4);
    }
}

static inline uint16_t as_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16; /* to nearest, ties to even */
    return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : (uint16_t)rounded;
}

VECTORS static void narrow_bfloat16(const float *from, Short *to, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = as_bfloat16(from[i]);
}

/* Rows of 16-bit floats in one pass: their total stays in registers. Returns how many elements that are, all but the
 * last few. */
typedef size_t (*Rows)(const char *const *rows, int count, float divisor, char *out, char *copy, size_t n);

/* A lane has 32 bits all the way, the lower or the upper half of a word. To widen 16 bits to 32 and to narrow them again
 * would take twice as long. */
typedef uint32_t Words __attribute__((vector_size(64)));
typedef float Floats __attribute__((vector_size(64)));
#define ROUND(BITS, VALUES)                                                                                            \
    Words BITS = (Words)VALUES, nan_in_##BITS = (Words)(VALUES != VALUES);                                             \
    BITS = ((BITS + 0x7FFF + (BITS >> 16 & 1)) & ~nan_in_##BITS) | (0x7FC00000 & nan_in_##BITS);
#define NARROW(PAIR, LOWER, UPPER)                                                                                     \
    {                                                                                                                  \
        ROUND(below, LOWER)                                                                                            \
        ROUND(above, UPPER)                                                                                            \
        PAIR = below >> 16 | (above & 0xFFFF0000);                                                                     \
    }
#define BFLOAT16_LOOP(COUNT, DIVISOR, OPERATOR, NARROWED)                                                              \
    for (size_t at = 0; at < 2 * whole; at += sizeof(Words)) {                                                         \
        Words pair;                                                                                                    \
        memcpy(&pair, rows[0] + at, sizeof pair);                                                                      \
        Floats lower = (Floats)(pair << 16), upper = (Floats)(pair & 0xFFFF0000);                                      \
        for (int i = 1; i < COUNT; i++) {                                                                              \
            memcpy(&pair, rows[i] + at, sizeof pair);                                                                  \
            lower = lower OPERATOR(Floats)(pair << 16), upper = upper OPERATOR(Floats)(pair & 0xFFFF0000);             \
        }                                                                                                              \
        if (DIVISOR != 1) lower /= DIVISOR, upper /= DIVISOR;                                                          \
        NARROWED(pair, lower, upper)                                                                                   \
        memcpy(out + at, &pair, sizeof pair);                                                                          \
        if (copy) memcpy(copy + at, &pair, sizeof pair);                                                               \
    }
#define BFLOAT16_ROWS(NAME, OPERATOR, TARGET, NARROWED)                                                                \
    TARGET static size_t NAME(const char *const *rows, int count, float divisor, char *out, char *copy, size_t n) {    \
        size_t whole = n - n % 32;                                                                                     \
        if (count == 2 && divisor == 1) BFLOAT16_LOOP(2, 1, OPERATOR, NARROWED)                                        \
        else BFLOAT16_LOOP(count, divisor, OPERATOR, NARROWED)                                                         \
        return whole;                                                                                                  \
    }
BFLOAT16_ROWS(sum_bfloat16, +, VECTORS, NARROW)
BFLOAT16_ROWS(product_bfloat16, *, VECTORS, NARROW)

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 11)
/* Some processors narrow to bfloat16 themselves. But NaNs keep their bits, and subnormal numbers become 0, so these are
 * left to NARROW. The result has the lower halves first; `MIXED` is where each belongs. */
#define AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512bf16")))
#define HAS(VALUES) _mm512_fpclass_ps_mask((__m512)VALUES, 0xA1) /* a NaN or a subnormal number */
#define MIXED ((Words){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} * 0x10001 + 0x100000)
#define NARROW_AVX512(PAIR, LOWER, UPPER)                                                                              \
    if (HAS(LOWER) | HAS(UPPER)) NARROW(PAIR, LOWER, UPPER)                                                            \
    else {                                                                                                             \
        __m512bh halves = _mm512_cvtne2ps_pbh((__m512)UPPER, (__m512)LOWER);                                           \
        PAIR = (Words)_mm512_permutexvar_epi16((__m512i)MIXED, (__m512i)halves);                                       \
    }
BFLOAT16_ROWS(sum_avx512_bf16, +, AVX512_BF16, NARROW_AVX512)
BFLOAT16_ROWS(product_avx512_bf16, *, AVX512_BF16, NARROW_AVX512)
#define HAS_AVX512_BF16 (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512dq"))
#else
#define sum_avx512_bf16 sum_bfloat16
#define product_avx512_bf16 product_bfloat16
#define HAS_AVX512_BF16 0
#endif

/* The bits of numbers have their order, as signed integers, if those of negative numbers are turned: -0 comes before
 * +0. All that comes after infinity is a NaN. */
#define EXTREMUM(NAME, OVER, INFINITE, NAN_)                                                                           \
    static inline int16_t of_##NAME(int16_t a, int16_t b) {                                                            \
        int16_t of_a = (int16_t)(a ^ ((a >> 15) & 0x7FFF)), of_b = (int16_t)(b ^ ((b >> 15) & 0x7FFF));                \
        int16_t size_a = a & 0x7FFF, size_b = b & 0x7FFF, result = of_a OVER of_b ? a : b;                             \
        return (size_a > size_b ? size_a : size_b) > INFINITE ? NAN_ : result;                                         \
    }                                                                                                                  \
    COMBINE(NAME, int16_t, of_##NAME(a, b))
EXTREMUM(max_bfloat16, >, 0x7F80, 0x7FC0)
EXTREMUM(min_bfloat16, <, 0x7F80, 0x7FC0)
EXTREMUM(max_float16, >, 0x7C00, 0x7E00)
EXTREMUM(min_float16, <, 0x7C00, 0x7E00)

VECTORS static void widen_float16(const Short *from, float *to, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t sign = (uint32_t)(from[i] & 0x8000) << 16, rest = (uint32_t)(from[i] & 0x7FFF) << 13;
        uint32_t exponent = rest & 0x0F800000;
        /* Normal numbers get the exponent's new bias, infinities and NaNs the largest exponent. Subnormal ones are what
         * the same bits are with an exponent, less the leading one that they do not have. */
        uint32_t bits = rest + 0x38000000 + (exponent == 0x0F800000 ? 0x38000000 : 0);
        uint32_t below = rest + 0x38800000, one = 0x38800000;
        float f, g, h;
        memcpy(&f, &bits, 4);
        memcpy(&g, &below, 4);
        memcpy(&h, &one, 4);
        g -= h;
        f = exponent == 0 ? g : f;
        memcpy(&bits, &f, 4);
        bits |= sign;
        memcpy(&to[i], &bits, 4);
    }
}

VECTORS static void narrow_float16(const float *from, Short *to, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &from[i], 4);
        uint32_t sign = (bits >> 16) & 0x8000, rest = bits & 0x7FFFFFFF;
        /* Numbers that will be subnormal: to add 0.5 rounds them to the last bit that a float16 has there. */
        float f, half = 0.5F;
        memcpy(&f, &rest, 4);
        f += half;
        uint32_t small, of_half;
        memcpy(&small, &f, 4);
        memcpy(&of_half, &half, 4);
        small -= of_half;
        uint32_t normal = (rest + 0xC8000FFF + ((rest >> 13) & 1)) >> 13;
        uint32_t value = rest < 0x38800000 ? small : normal;
        value = rest >= 0x477FF000 ? 0x7C00 : value; /* too large, or infinity */
        to[i] = rest > 0x7F800000 ? 0x7E00 : (uint16_t)(sign | value);
    }
}

#if defined(__x86_64__)
/* Nearly all x86 processors convert float16 themselves. */
__attribute__((target("avx2,f16c"))) static void widen_f16c(const Short *from, float *to, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
    widen_float16(from + i, to + i, n - i);
}

__attribute__((target("avx2,f16c"))) static inline __m128i as_float16(__m256 f) {
    __m128i half = _mm256_cvtps_ph(f, _MM_FROUND_TO_NEAREST_INT);
    __m128i above = _mm_cmpgt_epi16(_mm_and_si128(half, _mm_set1_epi16(0x7FFF)), _mm_set1_epi16(0x7C00));
    return _mm_blendv_epi8(half, _mm_set1_epi16(0x7E00), above);
}

__attribute__((target("avx2,f16c"))) static void narrow_f16c(const float *from, Short *to, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm_storeu_si128((__m128i *)(to + i), as_float16(_mm256_loadu_ps(from + i)));
    narrow_float16(from + i, to + i, n - i);
}

#define AVX2_F16C __attribute__((target("avx2,f16c")))
#define OF_FLOAT16(P) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(P)))
#define FLOAT16_ROWS(NAME, COMBINED)                                                                                   \
    AVX2_F16C static size_t NAME(const char *const *rows, int count, float divisor, char *out, char *copy, size_t n) { \
        size_t whole = n - n % 16;                                                                                     \
        for (size_t at = 0; at < 2 * whole; at += 32) {                                                                \
            __m256 first = OF_FLOAT16(rows[0] + at), second = OF_FLOAT16(rows[0] + at + 16);                           \
            for (int i = 1; i < count; i++) {                                                                          \
                first = COMBINED(first, OF_FLOAT16(rows[i] + at));                                                     \
                second = COMBINED(second, OF_FLOAT16(rows[i] + at + 16));                                              \
            }                                                                                                          \
            if (divisor != 1) first /= divisor, second /= divisor;                                                     \
            __m256i both = _mm256_set_m128i(as_float16(second), as_float16(first));                                    \
            _mm256_storeu_si256((__m256i *)(out + at), both);                                                          \
            if (copy) _mm256_storeu_si256((__m256i *)(copy + at), both);                                               \
        }                                                                                                              \
        return whole;                                                                                                  \
    }
FLOAT16_ROWS(sum_float16, _mm256_add_ps)
FLOAT16_ROWS(product_float16, _mm256_mul_ps)

/* Compilers of 2020 do not know the name "f16c". To ask the processor takes microseconds in a virtual machine. */
static int has_f16c, has_avx512_bf16;
__attribute__((constructor)) static void ask_processor(void) {
    unsigned a, b, c = 0, d;
    has_f16c = __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    has_avx512_bf16 = HAS_AVX512_BF16;
}
#else
#define widen_f16c widen_float16
#define narrow_f16c narrow_float16
static const Rows sum_float16 = NULL, product_float16 = NULL;
static const int has_f16c = 0, has_avx512_bf16 = 0;
#endif

void widen(Dtype dtype, const Short *from, float *to, size_t n) {
    if (dtype == BFLOAT16) widen_bfloat16(from, to, n);
    else if (has_f16c) widen_f16c(from, to, n);
    else widen_float16(from, to, n);
}

void narrow(Dtype dtype, const float *from, Short *to, size_t n) {
    if (dtype == BFLOAT16) narrow_bfloat16(from, to, n);
    else if (has_f16c) narrow_f16c(from, to, n);
    else narrow_float16(from, to, n);
}

static int is_short(Dtype dtype) { return dtype == FLOAT16 || dtype == BFLOAT16; }

#define ROW(NAME, ...) [NAME] = {__VA_ARGS__},
static const struct { const char *name; size_t itemsize; Combine combines[OPS]; } TABLE[DTYPES] = {DTYPE_TABLE(ROW)};

Dtype dtype_named(const char *name) {
    for (Dtype dtype = 0; dtype < DTYPES; dtype++)
        if (!strcmp(TABLE[dtype].name, name)) return dtype;
    return -1;
}

int reduction_of(Reduction *r, Dtype dtype, Op op, int averages, int scales) {
    if (dtype < 0 || dtype >= DTYPES || op >= OPS || !TABLE[dtype].combines[op]) return -1;
    *r = (Reduction){dtype, op, averages, scales, TABLE[dtype].itemsize, TABLE[dtype].combines[op]};
    return 0;
}

static void divide(Dtype dtype, void *x, int divisor, size_t n) {
    if (divisor == 1) return;
    switch (dtype) {
        case INT8: divide_i8(x, divisor, n); break;
        case INT16: divide_i16(x, divisor, n); break;
        case INT32: divide_i32(x, divisor, n); break;
        case INT64: divide_i64(x, divisor, n); break;
        case UINT8: divide_u8(x, divisor, n); break;
        case UINT16: divide_u16(x, divisor, n); break;
        case UINT32: divide_u32(x, divisor, n); break;
        case UINT64: divide_u64(x, divisor, n); break;
        case COMPLEX64: divide_f32(x, (float)divisor, 2 * n); break;
        case FLOAT64: divide_f64(x, divisor, n); break;
        case COMPLEX128: divide_f64(x, divisor, 2 * n); break;
        default: divide_f32(x, (float)divisor, n);
    }
}

static void scale(Dtype dtype, void *x, Factor factor, size_t n) {
    switch (dtype) {
        case FLOAT64: scale_f64(x, factor.real, n); break;
        case COMPLEX64: scale_c32(x, (Complex32){(float)factor.real, (float)factor.imag}, n); break;
        case COMPLEX128: scale_c64(x, (Complex64){factor.real, factor.imag}, n); break;
        default: scale_f32(x, (float)factor.real, n);
    }
}

#define CHUNK 4096 /* bytes that stay in the first-level cache while all rows are combined */

/* What is to be combined of a row: the row itself, or a copy in `room`, as float32 if it is `widened`, and multiplied by
 * its factor. */
static const void *term(const Reduction *r, int widened, const char *row, const Factor *factor, void *room, size_t n) {
    if (widened) widen(r->dtype, (const Short *)row, room, n);
    else if (factor) memcpy(room, row, n * r->itemsize);
    else return row;
    if (factor) scale(r->dtype, room, *factor, n);
    return room;
}

static Rows rows_for(const Reduction *r) {
    int is_sum = r->op == SUM;
    if (r->dtype == BFLOAT16 && has_avx512_bf16) return is_sum ? sum_avx512_bf16 : product_avx512_bf16;
    if (r->dtype == BFLOAT16) return is_sum ? sum_bfloat16 : product_bfloat16;
    if (!has_f16c) return NULL;
    return is_sum ? sum_float16 : product_float16;
}

void reduce_rows(const Reduction *r, const char *const *rows, int count, const Factor *factors, char *out, char *copy,
                 size_t n) {
    _Alignas(64) char total[CHUNK], room[CHUNK];
    /* The largest of 16-bit floats is one of them, and is rounded nowhere. A single row has its NaNs changed. */
    int widened = is_short(r->dtype) && (r->op == SUM || r->op == PROD || count == 1);
    if (count == 2 && !widened && !factors && !r->averages) {
        r->combine(rows[0], rows[1], out, copy, n);
        return;
    }
    size_t wide = widened ? 4 : r->itemsize, most = CHUNK / wide, first = 0;
    Rows of_rows = widened && !factors && count > 1 ? rows_for(r) : NULL;
    if (of_rows) first = of_rows(rows, count, r->averages ? (float)count : 1, out, copy, n);
    for (size_t at = first; at < n; at += most) {
        size_t now = n - at < most ? n - at : most, from = at * r->itemsize;
        char *result = widened ? total : out + from;
        const void *so_far = term(r, widened, rows[0] + from, factors, total, now);
        for (int i = 1; i < count; i++) {
            const void *next = term(r, widened, rows[i] + from, factors ? &factors[i] : NULL, room, now);
            void *to = i == count - 1 ? result : total;
            r->combine(so_far, next, to, NULL, now);
            so_far = to;
        }
        if (so_far != result) memmove(result, so_far, now * wide);
        if (r->averages) divide(r->dtype, result, count, now);
        if (widened) narrow(r->dtype, (float *)result, (Short *)(out + from), now);
        if (copy) memcpy(copy + from, out + from, now * r->itemsize);
    }
}
