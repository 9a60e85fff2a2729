// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/read/verified_file.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"

namespace thinwire::checkpoint {

/// Prefixes of the names of the application's arrays. Rank 0's file of states
/// has the common arrays, and each rank's file has the rank's own.
inline constexpr const char* kExtra = "extra/";
inline constexpr const char* kExtraOfRank = "extra_of_rank/";

/// Returns the name of a rank's file of states.
[[nodiscard]] std::string state_file_name(int rank, int world);

/// Name of the file of states that `thinwire checkpoint export --states` writes
/// in addition to weights for other programs. For each parameter it has the
/// tensors exp_avg/NAME, exp_avg_sq/NAME and, if there are masters,
/// masters/NAME, in fp32 and the parameter's shape. It also has the int64
/// "step". States of DeepSpeed's 1-bit LAMB have exp_avg_sq_fresh/NAME and the
/// coefficients, one value each. The metadata "semantics" may be "deepspeed".
inline constexpr std::string_view kNamedStates = "optimizer.safetensors";

/// Adds the file's arrays and scalars to a manifest that has the parameters.
/// They are those of an Adam or LAMB checkpoint, except the optimizer's name
/// and its learning rates. Throws Error(kCorruptCheckpoint), which names the
/// file.
void describe_named_states(FileSystem& files, const std::string& directory,
                           Manifest& manifest);

/// The part of an array that a row of an index tensor describes. It lies in one
/// file and is not empty.
struct SavedPiece {
  std::size_t parameter = 0;  ///< Index in the manifest.
  Range range{};              ///< Elements of that parameter.
  std::size_t file = 0;       ///< Index in the manifest.
  std::uint64_t value = 0;    ///< Position of its first value among the array's
                              ///< values in that file.
};

/// The arrays of a checkpoint by parameter and range, regardless of the number
/// of ranks that saved it, and the application's data. Local. Only one thread
/// may use it at a time.
class SavedArrays {
 public:
  /// Opens every file with a part of an array, and reads and checks the index
  /// tensors. Pieces must lie inside their parameters and must not overlap.
  /// `files` and `manifest` must outlive this object. Throws
  /// Error(kUnavailable) and Error(kCorruptCheckpoint), which name the file.
  SavedArrays(FileSystem& files, std::string directory,
              const Manifest& manifest);
  /// Selects a file kNamedStates, which has one tensor for each array and
  /// parameter.
  struct NamedStates {};
  SavedArrays(FileSystem& files, const std::string& directory,
              const Manifest& manifest, NamedStates);
  SavedArrays(const SavedArrays&) = delete;
  SavedArrays& operator=(const SavedArrays&) = delete;

  /// Returns whether every rank has its own values of the array.
  [[nodiscard]] static bool is_per_rank(const SavedArray& array) noexcept;

  // In the functions below, `rank` selects the values of an array that differs
  // between ranks. It is ignored for other arrays, for which callers pass -1.
  // Throws Error(kCorruptCheckpoint) naming `array` if the manifest lacks it.

  /// Returns the pieces of an array by element or range, in the order of
  /// parameters and elements. There are none if the rank has no values of it.
  [[nodiscard]] std::span<const SavedPiece> pieces(std::string_view array,
                                                   int rank) const;
  /// Returns the pieces that overlap `range` of a parameter, cut to it.
  [[nodiscard]] std::vector<SavedPiece> pieces(std::string_view array, int rank,
                                               std::size_t parameter,
                                               Range range) const;
  /// Reads elements of a parameter from an array by element. to.size() must be
  /// range.size, and the dtype that of the array. Throws
  /// Error(kCorruptCheckpoint) if an element is in no file.
  void read(std::string_view array, int rank, std::size_t parameter,
            Range range, View to);
  /// Returns the number of values that read_all() returns.
  [[nodiscard]] std::size_t num_values(std::string_view array, int rank) const;
  /// Returns all values. The values of arrays by element or by range are in the
  /// order of pieces(), and other values in the order of the file.
  [[nodiscard]] Buffer read_all(std::string_view array, int rank);

  /// Describes bytes [begin, end) of a file for messages about damage: "exp_avg
  /// of h.0.w, h.0.b, 7 more; the header".
  [[nodiscard]] std::string describe(std::size_t file, std::uint64_t begin,
                                     std::uint64_t end) const;

  /// Returns the application's common data, or its data of one rank. Opens only
  /// files that hold no arrays. Throws like the constructor.
  [[nodiscard]] StateDict extra();
  [[nodiscard]] StateDict extra_of_rank(int rank);

  /// Frees memory that the next read() may need again.
  void forget_chunk() noexcept;
  /// Returns the bytes read from all files so far.
  [[nodiscard]] std::uint64_t bytes_read() const noexcept;

 private:
  using Pieces = std::vector<SavedPiece>;
  /// The files that hold an array, or one rank's values of it.
  struct Part {
    std::vector<std::pair<std::size_t, std::string>> fragments{};  // by file
    std::map<std::size_t, const TensorEntry*> tensors{};           // by file
    std::shared_ptr<const Pieces> pieces{};
  };
  struct Array {
    const SavedArray* saved = nullptr;
    std::map<int, Part> parts{};  // by rank, or -1 for values of all ranks
  };

  void open();
  void add_extra(int rank, std::string_view prefix, StateDict& to);
  [[nodiscard]] Pieces named_pieces(const SavedArray& array) const;
  void add(std::size_t file, const std::string& array,
           const std::string& fragments);
  void index(const Array& array, Part& part);
  void append_rows(std::size_t file, const std::string& fragments,
                   bool by_range, std::uint64_t tensor_values, Pieces& to);
  void require_once(const Pieces& pieces, const std::string& array) const;
  [[nodiscard]] const Array& array(std::string_view name) const;
  [[nodiscard]] const Part* part(std::string_view name, int rank) const;
  [[nodiscard]] Buffer read_named(const Part& part, DType dtype);
  void read_values(const Part& part, std::size_t file, std::uint64_t value,
                   View to);
  VerifiedFile& file(std::size_t number);

  FileSystem& system_;
  std::string directory_;
  const Manifest& manifest_;
  std::vector<std::unique_ptr<VerifiedFile>> files_;  // null for files without
                                                      // arrays
  std::vector<std::uint64_t> sizes_;                  // elements of each
                                                      // parameter
  std::map<std::string, Array, std::less<>> arrays_;
  // Arrays with the same fragments share their pieces.
  std::map<std::pair<bool, std::vector<std::pair<std::size_t, std::string>>>,
           std::shared_ptr<const Pieces>>
      indexes_;
  TensorEntry all_of_file_{};  // All data of a file of states from another
                               // program
  std::size_t last_file_ = 0;
};

}  // namespace thinwire::checkpoint
