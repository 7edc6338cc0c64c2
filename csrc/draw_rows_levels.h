// The draws of draw_rows.h for instruction sets beyond the baseline. Defined where the compiler targets them.
#pragma once

#include "draw_rows.h"

namespace khop {

void draw_distinct_avx2(const DrawRows& rows, std::size_t fanout, std::uint32_t stream, std::uint32_t* picks);
void draw_repeated_avx2(const DrawRows& rows, std::size_t fanout, std::uint32_t stream, std::uint32_t* picks);
void draw_distinct_avx512(const DrawRows& rows, std::size_t fanout, std::uint32_t stream, std::uint32_t* picks);
void draw_repeated_avx512(const DrawRows& rows, std::size_t fanout, std::uint32_t stream, std::uint32_t* picks);

}  // namespace khop
