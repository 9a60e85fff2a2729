// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/state_dict.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <vector>

#include "support/errors.h"

namespace thinwire::state_dict_test {
namespace {

using test::expect_error;

TEST(StateDicts, ReturnTheStoredValues) {
  StateDict state;
  const std::vector<float> values = {1, -0.0f, 3};
  state.put("exp_avg", values);
  state.put_integer("step", std::numeric_limits<std::int64_t>::min());
  state.put_real("ratio", 0.1);
  state.put_text("layout", "two\nlines");

  const auto array = state.array("exp_avg").as<float>();
  EXPECT_EQ(std::vector<float>(array.begin(), array.end()), values);
  EXPECT_EQ(state.integer("step"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(state.real("ratio"), 0.1);
  EXPECT_EQ(state.text("layout"), "two\nlines");
  EXPECT_EQ(state.arrays().size(), 1u);
  EXPECT_EQ(state.scalars().size(), 3u);
}

TEST(StateDicts, ListTheirEntries) {
  StateDict state;
  state.put("a", std::vector<float>(1));
  state.put_integer("i", 1);
  EXPECT_TRUE(state.has_array("a"));
  EXPECT_FALSE(state.has_array("i"));
  EXPECT_TRUE(state.has_scalar("i"));
  EXPECT_FALSE(state.has_scalar("a"));
}

TEST(StateDicts, CopyTheirArguments) {
  StateDict state;
  std::vector<float> values = {1, 2};
  state.put("a", values);
  values[0] = 9;
  EXPECT_EQ(state.array("a").as<float>()[0], 1);
}

TEST(StateDicts, ReplaceEntriesOfTheSameName) {
  StateDict state;
  state.put("a", std::vector<float>(5));
  state.put("a", std::vector<std::int32_t>{7});
  EXPECT_EQ(state.array("a").dtype(), DType::kInt32);
  EXPECT_EQ(state.array("a").size(), 1u);
  state.put_integer("s", 1);
  state.put_text("s", "now a text");
  EXPECT_EQ(state.text("s"), "now a text");
}

TEST(StateDicts, MayBeFilledFromTheirOwnArrays) {
  StateDict state;
  state.put("a", std::vector<float>{4});
  state.put("a", state.array("a"));
  EXPECT_EQ(state.array("a").as<float>()[0], 4);
}

TEST(StateDicts, HoldEmptyArraysWithTheirType) {
  StateDict state;
  state.put("none", std::vector<BFloat16>());
  EXPECT_TRUE(state.has_array("none"));
  EXPECT_EQ(state.array("none", DType::kBFloat16, 0).size(), 0u);
}

TEST(StateDicts, NameAMissingKeyOrOneOfAnotherKind) {
  StateDict state;
  state.put("m", std::vector<float>(3));
  state.put_integer("step", 1);
  state.put_real("ratio", 1);
  state.put_text("layout", "1");
  const auto refused = [](std::initializer_list<std::string_view> parts,
                          const std::function<void()>& call) {
    expect_error(ErrorCode::kCorruptCheckpoint, parts, call);
  };
  refused({"array", "'none'"}, [&] { (void)state.array("none"); });
  refused({"'none'"}, [&] { (void)state.array("none", DType::kFloat32, 1); });
  refused({"scalar", "'none'"}, [&] { (void)state.integer("none"); });
  refused({"'none'"}, [&] { (void)state.real("none"); });
  refused({"'none'"}, [&] { (void)state.text("none"); });
  refused({"'step'"}, [&] { (void)state.array("step"); });
  refused({"'m'"}, [&] { (void)state.integer("m"); });
  refused({"'step'", "real"}, [&] { (void)state.real("step"); });
  refused({"'ratio'", "integer"}, [&] { (void)state.integer("ratio"); });
  refused({"'layout'", "integer"}, [&] { (void)state.integer("layout"); });
  refused({"'step'", "text"}, [&] { (void)state.text("step"); });
  EXPECT_EQ(state.array("m", DType::kFloat32, 3).size(), 3u);
  refused({"'m'", "float32 of 4", "float32 of 3"},
          [&] { (void)state.array("m", DType::kFloat32, 4); });
  refused({"'m'", "float16 of 3", "float32 of 3"},
          [&] { (void)state.array("m", DType::kFloat16, 3); });
}

}  // namespace
}  // namespace thinwire::state_dict_test
