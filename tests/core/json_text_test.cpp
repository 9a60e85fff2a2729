// SPDX-License-Identifier: Apache-2.0
#include "core/json_text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/errors.h"

namespace thinwire::json_text_test {
namespace {

using test::expect_invalid;

// {"k0": 0, "k1": 0, ...}
std::string object_of(int members) {
  std::string text = "{";
  for (int i = 0; i < members; ++i)
    text += (i > 0 ? ", \"k" : "\"k") + std::to_string(i) + "\": 0";
  return text + "}";
}

TEST(Json, IntegersAreExactAndDoublesKeepTheirBits) {
  for (const char* text :
       {"0", "-9223372036854775808", "9223372036854775807",
        "18446744073709551615", "0.1", "1.0", "-0.0", "1e+16", "5e-324",
        "1.7976931348623157e+308", "1000000000000000.0"})
    EXPECT_EQ(compact_json(read_json(text)), text);
  EXPECT_EQ(compact_json(read_json("[-0, 1.50, 1e3]")), "[0, 1.5, 1000.0]");
}

TEST(Json, OnlyWholeNumbersWrittenAsSuchAreIntegers) {
  const auto integer = [](const char* text) {
    return integer_in(read_json(text));
  };
  EXPECT_EQ(integer("-3"), -3);
  EXPECT_EQ(integer("9223372036854775807"),
            std::numeric_limits<std::int64_t>::max());
  for (const char* text :
       {"9223372036854775808", "1.0", "1e3", "\"1\"", "true", "null", "[1]"})
    EXPECT_EQ(integer(text), std::nullopt) << text;
}

TEST(Json, ShortNumbersHaveNoPointIfTheyAreWhole) {
  for (const auto& [value, text] : {std::pair(1.0, "1"),
                                    {-0.0, "0"},
                                    {-65536.0, "-65536"},
                                    {0.5, "0.5"},
                                    {1e15, "1000000000000000"},
                                    {1e16, "1e+16"}})
    EXPECT_EQ(compact_json(short_number(value)), text);
}

TEST(Json, FindsMembersOfObjectsOnly) {
  const JsonValue value = read_json(R"({"a": 1, "b": [2]})");
  ASSERT_NE(find_member(value, "a"), nullptr);
  EXPECT_EQ(*find_member(value, "a"), 1);
  EXPECT_EQ(find_member(value, "c"), nullptr);
  EXPECT_EQ(find_member(*find_member(value, "b"), "a"), nullptr);
}

TEST(Json, TextHasTwoSpacesPerLevel) {
  const JsonValue value = read_json(R"({"b":[1,{}],"a":[],"c":"\u00e4\n"})");
  EXPECT_EQ(write_json(value),
            "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": [],\n"
            "  \"c\": \"\u00e4\\n\"\n}");
  EXPECT_EQ(compact_json(value),
            "{\"b\": [1, {}], \"a\": [], \"c\": \"\u00e4\\n\"}");
  EXPECT_EQ(compact_json("\xff"), "\"\ufffd\"");
}

TEST(Json, DuplicateKeysAreFoundAmongFewAndMany) {
  for (const int members : {1, 15, 16, 17, 100, 4095}) {
    const std::string text = object_of(members);
    EXPECT_EQ(read_json(text).size(), std::size_t(members));
    for (const int twice : {0, members - 1}) {
      const std::string key = "\"k" + std::to_string(twice) + "\"";
      const std::string other =
          text.substr(0, text.size() - 1) + ", " + key + ": 1}";
      expect_invalid({"duplicate key " + key}, [&] { (void)read_json(other); });
      expect_invalid({"duplicate key " + key}, [&] {
        read_json_members(other, {},
                          [](const std::string&, const JsonValue&, bool) {});
      });
    }
  }
}

TEST(Json, LimitsAreThoseGiven) {
  EXPECT_EQ(read_json(object_of(4096)).size(), 4096u);
  expect_invalid({"at most 4096 keys"},
                 [] { (void)read_json(object_of(4097)); });
  EXPECT_EQ(read_json(object_of(4097), {.members = 4097}).size(), 4097u);
  EXPECT_NO_THROW((void)read_json("[[1]]", {.depth = 2}));
  expect_invalid({"nested at most 2 deep"},
                 [] { (void)read_json("[[[]]]", {.depth = 2}); });
  EXPECT_NO_THROW((void)read_json("[1, 2]", {.values = 3}));
  expect_invalid({"at most 3 values"},
                 [] { (void)read_json("[1, 2, 3]", {.values = 3}); });
}

// "name: value" of a member, "name[]: value" of an element.
std::vector<std::string> pieces(const std::string& text,
                                const JsonLimits& limits = {}) {
  std::vector<std::string> found;
  read_json_members(
      text, limits,
      [&](const std::string& name, const JsonValue& value, bool is_element) {
        found.push_back(name + (is_element ? "[]: " : ": ") +
                        compact_json(value));
      });
  return found;
}

TEST(Json, MembersArePassedOneByOne) {
  EXPECT_EQ(pieces(R"({"a": 1, "b": {"c": [{"d": 2}]}, "e": "f", "g": null})"),
            (std::vector<std::string>{"a: 1", R"(b: {"c": [{"d": 2}]})",
                                      "e: \"f\"", "g: null"}));
  EXPECT_EQ(pieces("{}"), std::vector<std::string>{});
}

TEST(Json, ObjectsInAnArrayArePassedBeforeIt) {
  EXPECT_EQ(pieces(R"({"a": [1, {"b": [{}]}, 2, [[3]]], "c": []})"),
            (std::vector<std::string>{R"(a[]: {"b": [{}]})", "a[]: [[3]]",
                                      "a: [1, 2]", "c: []"}));
}

TEST(Json, LimitsOfValuesHoldForEachPiece) {
  const JsonLimits limits{.values = 4};
  EXPECT_EQ(
      pieces(R"({"a": [[1], [2], [3], [4]], "b": [1, 2, 3]})", limits).size(),
      6u);
  expect_invalid({"4 values"},
                 [&] { (void)pieces(R"({"a": [1, [1, 2]]})", limits); });
  expect_invalid({"4 values"}, [&] {
    (void)pieces(R"({"a": [1, [1], 2, [1], 3, [1]]})", limits);
  });
}

TEST(Json, OnlyObjectsHaveMembers) {
  for (const char* text : {"[]", "1", "\"a\"", "null", "[[1]]"})
    expect_invalid({"not a JSON object"}, [&] { (void)pieces(text); });
  for (const char* text : {"", "{", "{} {}", "{\"a\":}"})
    expect_invalid({"not JSON"}, [&] { (void)pieces(text); });
}

}  // namespace
}  // namespace thinwire::json_text_test
