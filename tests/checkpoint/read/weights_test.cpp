// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read/weights.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/tiny_checkpoint.h"
#include "support/errors.h"
#include "support/folder.h"

namespace thinwire::checkpoint::weights_test {
namespace {

using test::Content;
using test::write_file;
using thinwire::test::expect_error;
using thinwire::test::Folder;

std::vector<float> read(Weights& weights, std::string_view name) {
  const TensorEntry* const tensor = weights.find(name);
  std::vector<float> values(tensor == nullptr ? 0 : tensor->bytes / 4);
  weights.read(name, values);
  return values;
}

TEST(Weights, OfACheckpointAreFoundByNameAndAlias) {
  const Folder directory;
  test::write_tiny(directory.path());
  Weights weights(posix_file_system(), directory.path());
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b", "empty",
                                                       "mask", "one", "tied"}));
  EXPECT_EQ(read(weights, "tied"), read(weights, "a"));
  EXPECT_EQ(weights.find("b")->shape, (std::vector<std::size_t>{3, 3}));
  EXPECT_TRUE(weights.find("mask")->type.is_bool);
  EXPECT_EQ(weights.find("c"), nullptr);
  std::vector<float> part(4);
  weights.read("b", {5, 4}, part);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(part[i], test::tiny_value({}, "weights", 10 + i));
  EXPECT_GT(weights.bytes_read(), 4096u);
}

TEST(Weights, WhatIsAskedForMustFit) {
  const Folder directory;
  test::write_tiny(directory.path());
  Weights weights(posix_file_system(), directory.path());
  std::vector<float> values(6);
  expect_error(ErrorCode::kInvalidArgument, {"no weight 'c'"},
               [&] { weights.read("c", values); });
  expect_error(ErrorCode::kInvalidArgument, {"weight 'a'", "5 float32"},
               [&] { weights.read("a", values); });
  expect_error(ErrorCode::kInvalidArgument, {"weight 'b'"}, [&] {
    weights.read("b", {4, 6}, values);
  });
  std::vector<double> doubles(5);
  expect_error(ErrorCode::kInvalidArgument, {"weight 'a'", "float64"},
               [&] { weights.read("a", doubles); });
}

TEST(Weights, AFileAndAFolderOfOthersMayBeLinks) {
  const Folder directory;
  namespace fs = std::filesystem;
  write_file(directory.in("blob"),
             test::safetensors_of({Content::of("w", std::vector{1.f, 2.f})}));
  fs::create_directory(directory.in("folder"));
  fs::create_symlink("../blob", directory.in("folder/model.safetensors"));
  fs::create_symlink("blob", directory.in("alone.safetensors"));
  for (const char* name : {"folder", "alone.safetensors"}) {
    Weights weights(posix_file_system(), directory.in(name));
    EXPECT_EQ(read(weights, "w"), (std::vector{1.f, 2.f}));
  }
}

TEST(Weights, FilesOfAnIndexMayNotHoldAWeightTwice) {
  const Folder directory;
  const std::string bytes =
      test::safetensors_of({Content::of("w", std::vector{1.f})});
  write_file(directory.in("1.safetensors"), bytes);
  write_file(directory.in("2.safetensors"), bytes);
  const auto index = [&](std::string_view text) {
    write_file(directory.in("model.safetensors.index.json"), text);
    return
        [&] { const Weights weights(posix_file_system(), directory.path()); };
  };
  expect_error(ErrorCode::kCorruptCheckpoint, {"'w' is in another file too"},
               index(R"({"weight_map": {"w": "1.safetensors",)"
                     R"( "v": "2.safetensors"}})"));
  index(R"({"metadata": {}, "weight_map": {"w": "2.safetensors"}})")();
  for (const char* text :
       {"{}", "[]", R"({"weight_map": []})", R"({"weight_map": {"w": 1}})",
        R"({"weight_map": {"w": "../1"}})", R"({"weight_map": {"w": ""}})",
        R"({"weight_map": {"w": "a", "w": "a"}})"})
    expect_error(ErrorCode::kCorruptCheckpoint, {"index.json"}, index(text));
  expect_error(ErrorCode::kUnavailable, {"3.safetensors"},
               index(R"({"weight_map": {"w": "3.safetensors"}})"));
}

TEST(Weights, WhereThereAreNoneThatIsSaid) {
  const Folder directory;
  for (const char* name : {"", "nowhere"})
    expect_error(ErrorCode::kUnavailable, {"no weights found"}, [&] {
      const Weights weights(posix_file_system(), directory.in(name));
    });
  expect_error(ErrorCode::kUnavailable, {"x.safetensors"}, [&] {
    const Weights weights(posix_file_system(), directory.in("x.safetensors"));
  });
}

}  // namespace
}  // namespace thinwire::checkpoint::weights_test
