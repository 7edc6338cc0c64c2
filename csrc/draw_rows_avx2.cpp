// Compiled with -mavx2 (CMakeLists.txt); run only on processors that have it.
#if defined(__x86_64__)

#include <immintrin.h>

#include "draw_rows_lanes.h"
#include "draw_rows_levels.h"

namespace khop {
namespace {

struct Avx2Lanes {
  static constexpr std::size_t kCount = 8;
  using Word = __m256i;
  using Mask = __m256i;
  struct Product {
    Word low, high;
  };
  static Word load(const std::uint32_t* from) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(from)); }
  static void store(std::uint32_t* to, Word word) { _mm256_store_si256(reinterpret_cast<__m256i*>(to), word); }
  static Word broadcast(std::uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }
  static Word add(Word a, Word b) { return _mm256_add_epi32(a, b); }
  static Word exclusive_or(Word a, Word b) { return _mm256_xor_si256(a, b); }
  // The instruction multiplies every other lane: call it for the even lanes, then for the odd lanes moved down.
  static Product multiply(Word a, Word b) {
    const Word even = _mm256_mul_epu32(a, b);
    const Word odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
    return {_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA),
            _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA)};
  }
  static Mask none() { return _mm256_setzero_si256(); }
  static Mask equal(Word a, Word b) { return _mm256_cmpeq_epi32(a, b); }
  static Mask either(Mask a, Mask b) { return _mm256_or_si256(a, b); }
  static Word select(Mask mask, Word a, Word b) { return _mm256_blendv_epi8(b, a, mask); }
};

}  // namespace

const DrawFunctions kDrawFunctionsAvx2{&draw_distinct<Avx2Lanes>, &draw_repeated<Avx2Lanes>, &draw_words<Avx2Lanes>};

}  // namespace khop

#endif
