// Enough of a test framework for the core: TEST(name) { CHECK(condition); }, and a program that runs them all.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace khop::testing {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Makes a test known before main() begins.
struct Registration {
  Registration(const char* name, void (*run)());
};

template <class A, class B>
void check_equal(const A& actual, const B& expected, const char* text, const char* file, int line) {
  if (actual == expected) return;
  std::ostringstream message;
  message << file << ':' << line << ": " << text;
  if constexpr (requires { message << actual << expected; }) message << " (" << actual << " != " << expected << ')';
  throw Failure(message.str());
}

template <class Error, class Fn>
void check_throws(Fn&& fn, const char* text, const char* file, int line) {
  try {
    fn();
  } catch (const Error&) {
    return;
  }
  throw Failure(std::string(file) + ':' + std::to_string(line) + ": nothing thrown by " + text);
}

}  // namespace khop::testing

#define TEST(name)                                                      \
  static void name();                                                   \
  static const khop::testing::Registration name##_registration(#name, name); \
  static void name()

#define CHECK(condition) \
  khop::testing::check_equal(static_cast<bool>(condition), true, #condition, __FILE__, __LINE__)
#define CHECK_EQUAL(actual, expected) \
  khop::testing::check_equal(actual, expected, #actual " == " #expected, __FILE__, __LINE__)
#define CHECK_THROWS(error, expression) \
  khop::testing::check_throws<error>([&] { (void)(expression); }, #expression, __FILE__, __LINE__)
