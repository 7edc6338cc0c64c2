// The draws of draw_rows.h for instruction sets beyond the baseline. Defined on x86-64.
#pragma once

#include "draw_rows.h"

namespace khop {

extern const DrawFunctions kDrawFunctionsAvx2;
extern const DrawFunctions kDrawFunctionsAvx512;

}  // namespace khop
