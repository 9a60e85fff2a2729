// SPDX-License-Identifier: Apache-2.0
#include "core/json.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/errors.h"

namespace thinwire::json_test {
namespace {

using test::expect_invalid;

// {"k0": 0, "k1": 0, ...}
std::string object_of(int members) {
  std::string text = "{";
  for (int i = 0; i < members; ++i)
    text += (i > 0 ? ", \"k" : "\"k") + std::to_string(i) + "\": 0";
  return text + "}";
}

TEST(Json, NumbersKeepTheirText) {
  const Json value = parse_json("[1, -0, 1.50, 1e3, 18446744073709551617]");
  std::vector<std::string> texts;
  for (const Json& number : value.elements) texts.push_back(number.text);
  EXPECT_EQ(texts, (std::vector<std::string>{"1", "0", "1.50", "1e3",
                                             "18446744073709551617"}));
  EXPECT_EQ(compact_json(value), "[1, 0, 1.50, 1e3, 18446744073709551617]");
}

TEST(Json, DuplicateKeysAreFoundAmongFewAndMany) {
  for (const int members : {1, 15, 16, 17, 100, 4095}) {
    const std::string text = object_of(members);
    EXPECT_EQ(parse_json(text).members.size(), std::size_t(members));
    for (const int twice : {0, members - 1}) {
      const std::string key = "\"k" + std::to_string(twice) + "\"";
      const std::string other =
          text.substr(0, text.size() - 1) + ", " + key + ": 1}";
      expect_invalid({"duplicate key " + key},
                     [&] { (void)parse_json(other); });
      expect_invalid({"duplicate key " + key}, [&] {
        parse_json_members(other, {}, [](const std::string&, Json, bool) {});
      });
    }
  }
}

TEST(Json, LimitsAreThoseGiven) {
  EXPECT_EQ(parse_json(object_of(4096)).members.size(), 4096u);
  expect_invalid({"at most 4096 keys"},
                 [] { (void)parse_json(object_of(4097)); });
  EXPECT_EQ(parse_json(object_of(4097), {.members = 4097}).members.size(),
            4097u);
  EXPECT_NO_THROW((void)parse_json("[[1]]", {.depth = 2}));
  expect_invalid({"nested at most 2 deep"},
                 [] { (void)parse_json("[[[]]]", {.depth = 2}); });
  EXPECT_NO_THROW((void)parse_json("[1, 2]", {.values = 3}));
  expect_invalid({"at most 3 values"},
                 [] { (void)parse_json("[1, 2, 3]", {.values = 3}); });
}

// "name: value" of a member, "name[]: value" of an element.
std::vector<std::string> pieces(const std::string& text,
                                const JsonLimits& limits = {}) {
  std::vector<std::string> found;
  parse_json_members(
      text, limits,
      [&](const std::string& name, const Json& value, bool is_element) {
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
}  // namespace thinwire::json_test
