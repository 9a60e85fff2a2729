// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read/saved_arrays.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/read/verified_file.h"
#include "checkpoint/read/weights.h"
#include "checkpoint/tiny_checkpoint.h"
#include "support/errors.h"
#include "support/folder.h"

namespace thinwire::checkpoint::saved_arrays_test {
namespace {

using test::Content;
using test::kTinySize;
using test::Tiny;
using test::tiny_value;
using test::write_file;
using thinwire::test::expect_error;
using thinwire::test::expect_invalid;
using thinwire::test::Folder;

// A checkpoint on disk that is open.
struct Opened {
  explicit Opened(const Tiny& tiny)
      : manifest((test::write_tiny(directory.path(), tiny),
                  read_manifest(posix_file_system(), directory.path()))),
        arrays(posix_file_system(), directory.path(), manifest) {}
  Folder directory;
  Manifest manifest;
  SavedArrays arrays;
};

// Where the parameters of a tiny checkpoint begin in the flat array.
constexpr std::size_t kBegins[] = {0, 5, 5, 14};
constexpr std::size_t kSizes[] = {5, 0, 9, 1};

TEST(SavedArrays, EveryRangeIsReadWhateverTheNumberOfRanks) {
  for (const int world : {1, 2, 3, 4, 16}) {
    const Tiny tiny{world};
    Opened opened(tiny);
    for (const char* name : {"exp_avg", "exp_avg_sq"})
      for (std::size_t p = 0; p < 4; ++p)
        for (std::size_t begin = 0; begin <= kSizes[p]; ++begin)
          for (std::size_t end = begin; end <= kSizes[p]; ++end) {
            std::vector<float> values(end - begin);
            opened.arrays.read(name, -1, p, {begin, end - begin}, values);
            for (std::size_t i = begin; i < end; ++i)
              ASSERT_EQ(values[i - begin],
                        tiny_value(tiny, name, kBegins[p] + i))
                  << name << " " << world << " " << p << " " << i;
          }
    EXPECT_GT(opened.arrays.bytes_read(), 0u);
  }
}

TEST(SavedArrays, ReadsOwnValuesOfRanksByRank) {
  const Tiny tiny{3};
  Opened opened(tiny);
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<float> b(9);
    opened.arrays.read("worker_error", rank, 2, {0, 9}, b);
    for (std::size_t i = 0; i < 9; ++i)
      EXPECT_EQ(b[i], tiny_value(tiny, "worker_error", 5 + i, rank));
    const Buffer random = opened.arrays.read_all("extra/random", rank);
    ASSERT_EQ(random.size(), 7u);
    EXPECT_EQ(random.as<std::uint8_t>()[6], '0' + rank);
  }
  EXPECT_TRUE(opened.arrays.pieces("worker_error", 3).empty());
  EXPECT_TRUE(opened.arrays.read_all("extra/random", 3).empty());
}

TEST(SavedArrays, OtherArraysAreReadWhole) {
  const Tiny tiny{2};
  Opened opened(tiny);
  const Buffer all = opened.arrays.read_all("exp_avg_sq", -1);
  ASSERT_EQ(all.size(), kTinySize);
  for (std::size_t i = 0; i < kTinySize; ++i)
    EXPECT_EQ(all.as<float>()[i], tiny_value(tiny, "exp_avg_sq", i));
  const Buffer trust = opened.arrays.read_all("trust", -1);
  ASSERT_EQ(trust.size(), 4u);
  EXPECT_EQ(trust.as<float>()[3], tiny_value(tiny, "trust", 3));
  const Buffer history = opened.arrays.read_all("history", -1);
  ASSERT_EQ(history.size(), 3u);
  EXPECT_EQ(history.as<double>()[1], 0.5);
  // 2 + 2 + 1 elements of a, 2 + 2 + 2 + 2 + 1 of b, one.
  const auto pieces = opened.arrays.pieces("scales", -1);
  ASSERT_EQ(pieces.size(), 9u);
  EXPECT_EQ(pieces[2].range, (Range{4, 1}));
  const Buffer scales = opened.arrays.read_all("scales", -1);
  ASSERT_EQ(scales.size(), 9u);
  EXPECT_EQ(scales.as<float>()[8], tiny_value(tiny, "scales", 8));
}

TEST(SavedArrays, RefusesRequestsThatDoNotFit) {
  Opened opened(Tiny{2});
  std::vector<float> values(6);
  expect_error(ErrorCode::kCorruptCheckpoint, {"no array 'momentum'"}, [&] {
    opened.arrays.read("momentum", -1, 0, {0, 6}, values);
  });
  expect_invalid({"'trust'", "by element"}, [&] {
    opened.arrays.read("trust", -1, 0, {0, 6}, values);
  });
  expect_invalid({"'exp_avg'"}, [&] {
    opened.arrays.read("exp_avg", -1, 0, {0, 5}, values);
  });
  // Parameter a has five elements.
  expect_error(ErrorCode::kCorruptCheckpoint,
               {"elements 5-5 of 'a' are in no file of exp_avg"}, [&] {
                 opened.arrays.read("exp_avg", -1, 0, {0, 6}, values);
               });
}

// One file with one array of five elements of `a`, by these rows.
void expect_refused(const std::vector<std::int64_t>& rows, std::size_t values,
                    std::initializer_list<std::string_view> parts) {
  const Folder directory;
  const std::string name = "state-00001-of-00001.safetensors";
  const std::string bytes = test::safetensors_of(
      {Content::of("m", std::vector<float>(values)),
       Content::of("fragments/0", {rows.size() / 3, 3}, rows)});
  test::write_file(directory.in(name), bytes);
  Manifest manifest;
  manifest.parameters = {{"a", {5}}};
  manifest.arrays = {{"m", optim::Axis::kElement, optim::Sharing::kSharded}};
  manifest.files = {test::saved_file(name, bytes)};
  manifest.files[0].tensors = {{"m", "fragments/0"}};
  if (parts.size() == 0) {
    const SavedArrays arrays(posix_file_system(), directory.path(), manifest);
    return;
  }
  expect_error(ErrorCode::kCorruptCheckpoint, parts, [&] {
    const SavedArrays arrays(posix_file_system(), directory.path(), manifest);
  });
}

TEST(SavedArrays, FragmentsLieInsideOfParametersAndEachElementIsThereOnce) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  expect_refused({0, 0, 5}, 5, {});
  expect_refused({0, 3, 2, 0, 0, 3}, 5, {});
  expect_refused({1, 0, 5}, 5, {"row 0", "[1, 0, 5]"});
  expect_refused({-1, 0, 5}, 5, {"row 0", "outside"});
  expect_refused({0, 0, 2, 0, 2, 4}, 6, {"row 1", "[0, 2, 4]"});
  expect_refused({0, -1, 5}, 5, {"row 0"});
  expect_refused({0, 6, 1}, 1, {"row 0"});
  expect_refused({0, 2, -1}, 1, {"row 0"});
  expect_refused({0, 2, 0}, 0, {"row 0"});
  expect_refused({0, kHuge, kHuge}, 1, {"row 0"});
  expect_refused({kHuge, 0, 1}, 1, {"row 0"});
  expect_refused({0, 0, 3, 0, 2, 3}, 6, {"element 2 of 'a' appears twice"});
  expect_refused({0, 0, 5}, 4, {"lists more values than the file has"});
  expect_refused({0, 0, 4}, 5,
                 {"'m' has 5 values", "its index tensor lists 4"});
}

// ---- weights

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
  EXPECT_EQ(weights.find("mask")->type.other, "BOOL");
  EXPECT_EQ(weights.find("c"), nullptr);
  std::vector<float> part(4);
  weights.read("b", {5, 4}, part);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(part[i], test::tiny_value({}, "weights", 10 + i));
  EXPECT_GT(weights.bytes_read(), 4096u);
}

TEST(Weights, RefusesRequestsThatDoNotFit) {
  const Folder directory;
  test::write_tiny(directory.path());
  Weights weights(posix_file_system(), directory.path());
  std::vector<float> values(6);
  expect_invalid({"no weight 'c'"}, [&] { weights.read("c", values); });
  expect_invalid({"weight 'a'", "5 float32"},
                 [&] { weights.read("a", values); });
  expect_invalid({"weight 'b'"}, [&] { weights.read("b", {4, 6}, values); });
  std::vector<double> doubles(5);
  expect_invalid({"weight 'a'", "float64"},
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

TEST(Weights, RefusesFoldersWithoutWeights) {
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
}  // namespace thinwire::checkpoint::saved_arrays_test
