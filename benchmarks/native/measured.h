// The frame that callgrind's --toggle-collect watches for.
#pragma once

#include <functional>

extern "C" void khop_measured(const std::function<void()>& operation);
