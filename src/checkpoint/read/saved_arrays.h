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

/// The names of the application's arrays begin with one of these. Rank 0's file
/// of states has those of all ranks, and each rank's file has its own.
inline constexpr const char* kExtra = "extra/";
inline constexpr const char* kExtraOfRank = "extra_of_rank/";

/// The name of a rank's file of states.
[[nodiscard]] std::string state_file_name(int rank, int world);

/// The file of states beside weights of other programs, which `thinwire
/// checkpoint export --states` writes. It has the tensors exp_avg/NAME,
/// exp_avg_sq/NAME and, if there are masters, masters/NAME of each parameter,
/// in fp32 and its shape. It also has the int64 "step". One of DeepSpeed's
/// 1-bit LAMB has exp_avg_sq_fresh/NAME and the coefficients, one value each.
/// The metadata "semantics" may be "deepspeed".
inline constexpr std::string_view kNamedStates = "optimizer.safetensors";

/// Adds the file's arrays and scalars to a manifest that has the parameters.
/// They are those of an Adam or LAMB checkpoint, except the optimizer and its
/// learning rates. Throws Error(kCorruptCheckpoint), which names the file.
void describe_named_states(FileSystem& files, const std::string& directory,
                           Manifest& manifest);

/// A part of an array that lies in one file: a row of an index tensor. Never
/// empty.
struct SavedPiece {
  std::size_t parameter = 0;  ///< Index in the manifest.
  Range range{};              ///< Elements of that parameter.
  std::size_t file = 0;       ///< Index in the manifest.
  std::uint64_t value = 0;    ///< Number of its first value in that file.
};

/// The arrays of a checkpoint by parameter and range, whatever number of ranks
/// saved it, and what the application added. Local. Not for several threads at
/// once.
class SavedArrays {
 public:
  /// Opens every file that holds a part of an array, then reads and checks the
  /// index tensors. Pieces must lie inside their parameters and must not
  /// overlap. `files` and `manifest` must outlive this. Throws
  /// Error(kUnavailable) and Error(kCorruptCheckpoint), which name the file.
  SavedArrays(FileSystem& files, std::string directory,
              const Manifest& manifest);
  /// Selects the file kNamedStates of other programs, which has a tensor for
  /// each array and parameter.
  struct NamedStates {};
  SavedArrays(FileSystem& files, const std::string& directory,
              const Manifest& manifest, NamedStates);
  SavedArrays(const SavedArrays&) = delete;
  SavedArrays& operator=(const SavedArrays&) = delete;

  /// Every rank has its own values of it.
  [[nodiscard]] static bool is_per_rank(const SavedArray& array) noexcept;

  // `rank` below is whose values are meant where each rank has its own; of
  // other arrays it may be anything, by habit -1. `array` must be one of the
  // manifest's, or Error(kCorruptCheckpoint) names it.

  /// Returns the pieces of an array by element or range, in the order of
  /// parameters and elements. There are none if the rank has nothing of it.
  [[nodiscard]] std::span<const SavedPiece> pieces(std::string_view array,
                                                   int rank) const;
  /// Returns the pieces with elements of `range` of a parameter, cut to it.
  [[nodiscard]] std::vector<SavedPiece> pieces(std::string_view array, int rank,
                                               std::size_t parameter,
                                               Range range) const;
  /// Elements of a parameter, of an array by element; to.size() must be
  /// range.size and the dtype the array's. Throws Error(kCorruptCheckpoint)
  /// where one is in no file.
  void read(std::string_view array, int rank, std::size_t parameter,
            Range range, View to);
  /// Values that read_all() gives; 0 if the rank has nothing of it.
  [[nodiscard]] std::size_t num_values(std::string_view array, int rank) const;
  /// All values: by element or range in the order of pieces(), one by range;
  /// else as they are in the file.
  [[nodiscard]] Buffer read_all(std::string_view array, int rank);

  /// Describes bytes [begin, end) of a file for messages about damage: "exp_avg
  /// of h.0.w, h.0.b, 7 more; the header".
  [[nodiscard]] std::string describe(std::size_t file, std::uint64_t begin,
                                     std::uint64_t end) const;

  /// Returns the data that the application added, of all ranks and of one.
  /// Opens only files that hold no arrays. Throws as the constructor.
  [[nodiscard]] StateDict extra();
  [[nodiscard]] StateDict extra_of_rank(int rank);

  /// Gives memory back that the next read() may need again.
  void forget_chunk() noexcept;
  /// From all files so far.
  [[nodiscard]] std::uint64_t bytes_read() const noexcept;

 private:
  using Pieces = std::vector<SavedPiece>;
  /// Which files hold an array, or a rank's values of it.
  struct Part {
    std::vector<std::pair<std::size_t, std::string>> fragments{};  // by file
    std::map<std::size_t, const TensorEntry*> tensors{};           // by file
    std::shared_ptr<const Pieces> pieces{};
  };
  struct Array {
    const SavedArray* saved = nullptr;
    std::map<int, Part> parts{};  // by rank; -1: of all
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
  std::vector<std::unique_ptr<VerifiedFile>> files_;  // null: no arrays
  std::vector<std::uint64_t> sizes_;                  // of parameters
  std::map<std::string, Array, std::less<>> arrays_;
  // Arrays that lie alike share their pieces.
  std::map<std::pair<bool, std::vector<std::pair<std::size_t, std::string>>>,
           std::shared_ptr<const Pieces>>
      indexes_;
  TensorEntry all_of_file_{};  // of others
  std::size_t last_file_ = 0;
};

}  // namespace thinwire::checkpoint
