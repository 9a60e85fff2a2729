// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <random>
#include <string>

namespace thinwire::test {

// Replacements for a piece of text.
inline constexpr const char* kPieces[] = {
    "",     "0",    "-1",       "1e308",   "1e-320", "9223372036854775808",
    "true", "null", "\"auto\"", "{}",      "[]",     "\"\\ud800\"",
    ",",    ":",    "\"",       "{",       "]",      "\xff",
    "2",    "0.5",  "1e2",      "\"bf16\""};

/// Makes texts like JSON with one to three changes, the same for the same seed.
class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  std::string operator()(std::string text, const std::string& other) {
    for (std::size_t times = 1 + below(3); times > 0 && !text.empty(); --times)
      switch (below(4)) {
        case 0:  // A character
          text[below(text.size())] = static_cast<char>(below(256));
          break;
        case 1:  // A value, or a few characters
          replace(text, token_at(text), kPieces[below(std::size(kPieces))]);
          break;
        case 2:  // A value, replaced by one of another file
          replace(text, token_at(text), piece(other, token_at(other)));
          break;
        default:  // The end
          text.resize(below(text.size()));
      }
    return text;
  }

 private:
  struct Token {
    std::size_t begin;
    std::size_t size;
  };

  std::size_t below(std::size_t end) { return random_() % end; }

  // Returns the text between two of the characters that separate values.
  Token token_at(const std::string& text) {
    constexpr const char* kSeparators = ",:{}[] \n";
    const std::size_t begin =
        text.find_first_not_of(kSeparators, below(text.size()));
    if (begin == std::string::npos) return {0, 0};
    const std::size_t end = text.find_first_of(kSeparators, begin);
    return {begin, std::min(end, text.size()) - begin};
  }
  static std::string piece(const std::string& text, Token token) {
    return text.substr(token.begin, token.size);
  }
  static void replace(std::string& text, Token token, const std::string& by) {
    text.replace(token.begin, token.size, by);
  }

  std::mt19937 random_;
};

}  // namespace thinwire::test
