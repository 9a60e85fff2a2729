// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace thinwire::train_gpt {

/// Sequences of bytes, one after the other. The first `context` bytes of each
/// are read; every byte except the first is a target.
struct Batch {
  std::size_t sequences = 0;
  std::size_t context = 0;
  std::vector<std::uint8_t> bytes;  ///< sequences x (context + 1).
};

/// This rank's share of a step's sequences.
struct Shard {
  std::uint64_t seed = 0;
  std::size_t rank = 0;
  std::size_t world_size = 1;
  std::size_t sequences = 1;  ///< On this rank, per step.
};

/// Files as bytes, each cut into its first nine tenths for training and the
/// rest for validation. No window crosses a cut or the end of a file.
///
/// Training: sequence number k begins at a place that depends only on (seed,
/// k), uniform over all places. The ranks of a step take adjacent numbers, in
/// rank order. So a step's global batch depends only on the seed, its first
/// number and its total size. Ranks never share a sequence.
///
/// Validation: the held-out parts are cut into windows that do not overlap.
/// Evenly spaced windows are used until they have the required number of
/// targets, or else all windows. The ranks take adjacent windows, in rank
/// order.
class TextData {
 public:
  /// The largest size of a file, because memory holds all of it.
  static constexpr std::size_t kMostBytes = std::size_t{4} << 30;

  /// Reads the files. `validation_bytes`, at least 1, is rounded up to whole
  /// windows. Throws Error(kUnavailable) naming a file that cannot be read.
  /// Throws Error(kInvalidArgument) if there is too little text for one
  /// training window and one validation window.
  TextData(const std::vector<std::string>& paths, std::size_t context,
           std::size_t validation_bytes = 64 * 1024);

  /// Returns the sequences of one backward for one rank. `first` is the first
  /// number of the world_size * sequences of all ranks.
  [[nodiscard]] Batch sequences_from(std::int64_t first,
                                     const Shard& shard) const;

  /// Returns the number of windows of all ranks together, at least 1.
  [[nodiscard]] std::size_t validation_windows() const noexcept {
    return validation_.size();
  }
  /// Returns validation windows [first, first + count) as one batch.
  [[nodiscard]] Batch validation_batch(std::size_t first,
                                       std::size_t count) const;

  /// Returns XXH3-64 of the bytes and cuts, which ranks compare.
  [[nodiscard]] std::uint64_t hash() const;

 private:
  struct Text {
    std::vector<std::uint8_t> bytes;
    std::size_t training = 0;  // Bytes before the cut.
    std::size_t starts = 0;    // Places where a training window may begin.
  };

  void choose_validation(std::size_t bytes);
  void append(std::size_t text, std::size_t begin, Batch& batch) const;

  std::vector<Text> texts_;
  std::size_t context_ = 0;
  std::size_t starts_ = 0;
  struct Window {
    std::size_t text = 0;
    std::size_t begin = 0;
  };
  std::vector<Window> validation_;
};

/// Windows [first, first + count) of all `windows` belong to `rank`. The
/// pieces' lengths differ by one at most.
struct Piece {
  std::size_t first = 0;
  std::size_t count = 0;
};
[[nodiscard]] Piece piece_of(std::size_t windows, std::size_t rank,
                             std::size_t world_size);

}  // namespace thinwire::train_gpt
