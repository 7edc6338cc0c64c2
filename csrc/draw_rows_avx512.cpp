// Compiled with -mavx512f (CMakeLists.txt); run only on processors that have it.
#if defined(__x86_64__)

#include <immintrin.h>

#include "draw_rows_lanes.h"
#include "draw_rows_levels.h"

namespace khop {
namespace {

struct Avx512Lanes {
  static constexpr std::size_t kCount = 16;
  using Word = __m512i;
  using Mask = __mmask16;
  struct Product {
    Word low, high;
  };
  static constexpr Mask kOdd = 0xAAAA;
  static Word load(const std::uint32_t* from) { return _mm512_load_si512(from); }
  static void store(std::uint32_t* to, Word word) { _mm512_store_si512(to, word); }
  static Word broadcast(std::uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
  static Word add(Word a, Word b) { return _mm512_add_epi32(a, b); }
  static Word exclusive_or(Word a, Word b) { return _mm512_xor_si512(a, b); }
  // The instruction multiplies every other lane: call it for the even lanes, then for the odd lanes moved down.
  static Product multiply(Word a, Word b) {
    const Word even = _mm512_mul_epu32(a, b);
    const Word odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32));
    return {_mm512_mask_blend_epi32(kOdd, even, _mm512_slli_epi64(odd, 32)),
            _mm512_mask_blend_epi32(kOdd, _mm512_srli_epi64(even, 32), odd)};
  }
  static Mask none() { return 0; }
  static Mask equal(Word a, Word b) { return _mm512_cmpeq_epi32_mask(a, b); }
  static Mask either(Mask a, Mask b) { return static_cast<Mask>(a | b); }
  static Word select(Mask mask, Word a, Word b) { return _mm512_mask_blend_epi32(mask, b, a); }
};

}  // namespace

const DrawFunctions kDrawFunctionsAvx512{&draw_distinct<Avx512Lanes>, &draw_repeated<Avx512Lanes>, &draw_words<Avx512Lanes>};

}  // namespace khop

#endif
