// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/matching.h"
#include "checkpoint/read/saved_arrays.h"
#include "checkpoint/read/weights.h"
#include "checkpoint/rows.h"
#include "thinwire/checkpoint/options.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/optim/state.h"

namespace thinwire::checkpoint {

/// Reads the parts of a checkpoint that this rank needs. Each rank reads a
/// share of the arrays that every rank needs, and ranks exchange the shares.
/// All ranks make the same calls. An error of one rank is kept until finish(),
/// so that no other rank waits for it.
class StateReader {
 public:
  /// All arguments must outlive this object.
  StateReader(comm::Communicator& comm, const ParameterLayout& layout,
              const Manifest& manifest, SavedArrays& arrays, Weights& weights,
              const Matching& matching, bool share_reads);

  /// Returns `elements` of the parameters in `dtype`, with zeros for new ones.
  /// They are the saved parameters, or the rounded fp32 masters. Low-bit
  /// replicas, which lag behind their masters, are read only for an optimizer
  /// that has such replicas. `target` is the optimizer's present state, or null
  /// if weights alone are loaded. Collective.
  [[nodiscard]] Buffer parameters(DType dtype, Range elements,
                                  const optim::State* target);
  /// Returns the state for an optimizer whose present state is `target`.
  /// Collective.
  [[nodiscard]] StateDict state(const optim::State& target);
  /// Returns whether the checkpoint has the same number of ranks, and the same
  /// ranks on every host.
  [[nodiscard]] bool are_same_ranks(const optim::State& target) const;
  /// Throws on all ranks the error of the first rank that failed. Collective.
  void finish();

 private:
  // Reads values [range.offset, range.end()) of an array.
  using Read = std::function<void(Range range, View to)>;

  [[nodiscard]] int saved_world() const noexcept { return manifest_.world; }
  [[nodiscard]] std::int64_t saved(const char* integer) const;
  // Returns the ranks whose own arrays are read: those of this rank's host if
  // `of_host`, and otherwise all.
  [[nodiscard]] std::vector<int> ranks_to_read(bool of_host) const;
  [[nodiscard]] const SavedArray* saved_masters() const noexcept;
  [[nodiscard]] Read masters(std::vector<Range> ranges, DType dtype);
  [[nodiscard]] Read weights(std::vector<Range> ranges);
  [[nodiscard]] Read elements(const SavedArray& array,
                              std::vector<Range> ranges);
  // Returns a function that reads means over the ranks. If `stays_own`, a rank
  // reads the values that it saved, and the mean over its host only for other
  // values.
  [[nodiscard]] Read mean_of_ranks(const SavedArray& array,
                                   std::vector<Range> ranges, bool stays_own);
  [[nodiscard]] bool has_all(const SavedArray& array, int rank,
                             const Row& row) const;
  void read_mean(const SavedArray& array, std::span<const int> ranks,
                 const Row& row, View to);
  // Calls body(row of the checkpoint, its values) for each row in `part` of
  // `ranges`, except rows of new parameters.
  void for_rows(std::span<const Range> ranges, Range part, View to,
                const std::function<void(const Row&, View)>& body) const;
  [[nodiscard]] Buffer fill(std::size_t size, DType dtype, bool is_shared,
                            const Read& read);

  void add(StateDict& dict, const SavedArray& array,
           const optim::State& target);
  void add_elements(StateDict& dict, const SavedArray& array,
                    const optim::State& target);
  void add_ranges(StateDict& dict, const SavedArray& array);
  void add_parameters(StateDict& dict, const SavedArray& array,
                      const optim::State& target);
  void add_whole(StateDict& dict, const SavedArray& array);
  void add_scalars(StateDict& dict) const;
  void add_new_parameters(StateDict& dict) const;
  [[nodiscard]] std::vector<Range> wanted(const SavedArray& array,
                                          const optim::State& target);
  [[nodiscard]] std::vector<Range> new_parameters() const;
  // Returns the elements of this layout that the pieces hold.
  [[nodiscard]] std::vector<Range> placed(
      std::span<const SavedPiece> pieces) const;
  // Runs `body` unless an earlier call has failed.
  void attempt(const std::function<void()>& body);

  comm::Communicator& comm_;
  const ParameterLayout& layout_;
  const Manifest& manifest_;
  SavedArrays& arrays_;
  Weights& weights_;
  const Matching& matching_;
  const bool shares_;
  std::vector<std::optional<std::size_t>> now_;  // by the manifest's index
  bool same_ranks_ = true;                       // see are_same_ranks()
  std::exception_ptr failure_;
};

}  // namespace thinwire::checkpoint
