// In a file of its own: a compiler that sees the callers makes copies of other names.
#include "measured.h"

void khop_measured(const std::function<void()>& operation) {
  operation();
  asm volatile("" ::: "memory");  // without it the call is a jump, and the frame ends before the work
}
