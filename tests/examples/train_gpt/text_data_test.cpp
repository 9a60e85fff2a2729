// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/text_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/errors.h"
#include "support/folder.h"

namespace thinwire::train_gpt::text_data_test {
namespace {

using test::expect_error;
using test::expect_invalid;

std::string counting(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i % 251);
  return text;
}

TextData data_of(const std::vector<std::string>& texts, std::size_t context,
                 std::size_t validation_bytes = 64 * 1024) {
  const test::Folder folder;
  std::vector<std::string> paths;
  for (const std::string& text : texts) {
    paths.push_back(folder.in(std::to_string(paths.size())));
    std::ofstream(paths.back(), std::ios::binary) << text;
  }
  return TextData(paths, context, validation_bytes);
}

// The batch of one step (1, 2, ...), if every step was of this size.
Batch batch_of(const TextData& data, const Shard& shard, std::int64_t step) {
  const std::size_t size = shard.world_size * shard.sequences;
  return data.sequences_from(step * static_cast<std::int64_t>(size), shard);
}

TEST(TextData, HoldsOutTheLastTenthOfEachFile) {
  const TextData data = data_of({std::string(900, 'a') + std::string(100, 'b'),
                                 std::string(450, 'c') + std::string(50, 'd')},
                                /*context=*/9);
  std::set<std::uint8_t> training;
  for (std::int64_t step = 1; step <= 50; ++step) {
    const Batch batch = batch_of(data, {.seed = 1, .sequences = 4}, step);
    training.insert(batch.bytes.begin(), batch.bytes.end());
  }
  EXPECT_EQ(training, (std::set<std::uint8_t>{'a', 'c'}));
  const Batch held_out = data.validation_batch(0, data.validation_windows());
  EXPECT_EQ(
      std::set<std::uint8_t>(held_out.bytes.begin(), held_out.bytes.end()),
      (std::set<std::uint8_t>{'b', 'd'}));
}

TEST(TextData, NoTrainingWindowCrossesTheEndOfAFile) {
  const TextData data =
      data_of({std::string(100, 'a'), std::string(100, 'b')}, /*context=*/8);
  for (std::int64_t step = 1; step <= 100; ++step) {
    const Batch batch = batch_of(data, {.seed = 3, .sequences = 1}, step);
    EXPECT_EQ(
        std::count(batch.bytes.begin(), batch.bytes.end(), batch.bytes.front()),
        9);
  }
}

// However many ranks take them, in however many backwards.
TEST(TextData, SequencesAreTheSameHoweverTheyAreTaken) {
  const TextData data = data_of({counting(5000)}, /*context=*/7);
  const Batch all = data.sequences_from(48, {.seed = 5, .sequences = 24});
  EXPECT_EQ(all.bytes, batch_of(data, {.seed = 5, .sequences = 24}, 2).bytes);
  for (const auto& [world, each] : {std::pair{2u, 12u}, std::pair{4u, 6u},
                                    std::pair{8u, 3u}, std::pair{2u, 4u}}) {
    std::vector<std::uint8_t> together;
    for (std::int64_t first = 48; first < 72; first += world * each)
      for (std::size_t rank = 0; rank < world; ++rank) {
        const Batch batch = data.sequences_from(
            first,
            {.seed = 5, .rank = rank, .world_size = world, .sequences = each});
        together.insert(together.end(), batch.bytes.begin(), batch.bytes.end());
      }
    EXPECT_EQ(together, all.bytes) << world << " ranks of " << each;
  }
}

TEST(TextData, SeedAndStepDecideTheBatch) {
  const TextData data = data_of({counting(5000)}, /*context=*/7);
  const auto bytes = [&](std::uint64_t seed, std::int64_t step) {
    return batch_of(data, {.seed = seed, .sequences = 4}, step).bytes;
  };
  EXPECT_EQ(bytes(1, 1), bytes(1, 1));
  EXPECT_NE(bytes(1, 1), bytes(1, 2));
  EXPECT_NE(bytes(1, 1), bytes(2, 1));
}

TEST(TextData, EveryPlaceIsDrawn) {
  // 40 bytes: 36 for training, so 33 places for windows of 4; 4 held out.
  const TextData data = data_of({counting(40)}, /*context=*/3);
  std::set<std::uint8_t> first_bytes;
  for (std::int64_t step = 1; step <= 1000; ++step) {
    const Batch batch = batch_of(data, {.seed = 1, .sequences = 1}, step);
    first_bytes.insert(batch.bytes.front());
  }
  EXPECT_EQ(first_bytes.size(), 33u);
  EXPECT_EQ(*first_bytes.begin(), 0u);
  EXPECT_EQ(*first_bytes.rbegin(), 32u);
}

TEST(TextData, ValidationPredictsEveryHeldOutByteOnceWhereThereAreFew) {
  // 100 held out: windows of 8 begin at 0, 7, ..., 91, and the first byte of
  // each is the last of the one before.
  const TextData data = data_of({counting(1000)}, /*context=*/7);
  ASSERT_EQ(data.validation_windows(), 14u);
  const Batch batch = data.validation_batch(0, 14);
  EXPECT_EQ(batch.sequences, 14u);
  for (std::size_t i = 0; i < 14; ++i) {
    EXPECT_EQ(batch.bytes[i * 8], (900 + i * 7) % 251);
    EXPECT_EQ(batch.bytes[i * 8 + 7], (900 + i * 7 + 7) % 251);
  }
}

TEST(TextData, ValidationTakesAsManyBytesAsAskedForOverAllFiles) {
  const std::vector<std::string> texts = {counting(5000), counting(5000)};
  for (const auto& [bytes, windows] :
       {std::pair{1u, 1u}, std::pair{70u, 10u}, std::pair{71u, 11u},
        std::pair{1'000'000u, 2 * (499u / 7)}})
    EXPECT_EQ(data_of(texts, /*context=*/7, bytes).validation_windows(),
              windows);
  const Batch batch = data_of(texts, 7, 14).validation_batch(0, 2);
  EXPECT_EQ(batch.bytes[0], batch.bytes[8]) << "the first of each file";
  // By default 64 KiB, which a context of 63 does not divide: one window more.
  const std::string large = counting(2'000'000);
  EXPECT_EQ(data_of({large}, 64).validation_windows(), 1024u);
  EXPECT_EQ(data_of({large}, 63).validation_windows(), 1041u);
}

TEST(TextData, HashTellsBytesAndFilesApart) {
  const auto hash = [](const std::vector<std::string>& texts) {
    return data_of(texts, 4).hash();
  };
  const std::string text = counting(200);
  std::string other = text;
  other[199] = 'x';
  EXPECT_EQ(hash({text}), hash({text}));
  EXPECT_NE(hash({text}), hash({other}));
  EXPECT_NE(hash({text + text}), hash({text, text}));
}

TEST(TextData, TooLittleTextIsRefused) {
  expect_invalid({"--data", "79 bytes in 1 files", "window of 8 bytes",
                  "validation", "80 bytes"},
                 [] { (void)data_of({counting(79)}, 7); });
  EXPECT_EQ(data_of({counting(80)}, 7).validation_windows(), 1u);
  expect_invalid({"--data", "0 bytes", "training"},
                 [] { (void)data_of({""}, 7); });
}

TEST(TextData, FilesThatCannotBeReadAreNamed) {
  const test::Folder folder;
  const std::string large = folder.in("large");
  std::ofstream(large).close();
  std::filesystem::resize_file(large, TextData::kMostBytes + 1);  // a hole
  for (const auto& [path, why] :
       {std::pair<std::string, std::string>{"no/such/file.txt", "No such file"},
        {folder.path(), "not a regular file"},
        {large, "4294967297 bytes"},
        {large, "the limit is 4294967296"}})
    expect_error(ErrorCode::kUnavailable, {path, why},
                 [&] { (void)TextData({path}, 7, 1); });
}

TEST(PieceOf, CoversEveryWindowOnceAndEvenly) {
  for (const std::size_t windows : {0u, 1u, 7u, 31u, 32u, 33u, 4097u}) {
    for (const std::size_t world_size : {1u, 2u, 3u, 8u}) {
      std::size_t next = 0;
      for (std::size_t rank = 0; rank < world_size; ++rank) {
        const Piece piece = piece_of(windows, rank, world_size);
        EXPECT_EQ(piece.first, next);
        EXPECT_LE(piece.count, windows / world_size + 1);
        EXPECT_GE(piece.count, windows / world_size);
        next += piece.count;
      }
      EXPECT_EQ(next, windows);
    }
  }
}

}  // namespace
}  // namespace thinwire::train_gpt::text_data_test
