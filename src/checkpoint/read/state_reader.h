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

/// Reads the parts of a checkpoint that this rank needs. Arrays that every rank
/// needs are read in shares and exchanged. All ranks make the same calls. An
/// error of one rank is kept until finish(), so that no other rank waits for
/// it.
class StateReader {
 public:
  /// All must outlive it.
  StateReader(comm::Communicator& comm, const ParameterLayout& layout,
              const Manifest& manifest, SavedArrays& arrays, Weights& weights,
              const Matching& matching, bool share_reads);

  /// Collective: returns `elements` of the parameters in `dtype`, with zeros
  /// for new ones. They are the saved parameters, or the rounded fp32 masters.
  /// Low-bit replicas, which lag behind their masters, are read only for an
  /// optimizer that has such replicas. `target` is the optimizer's present
  /// state, or null if weights alone are loaded.
  [[nodiscard]] Buffer parameters(DType dtype, Range elements,
                                  const optim::State* target);
  /// Collective: what an optimizer takes whose own state, as it is now, is
  /// `target`.
  [[nodiscard]] StateDict state(const optim::State& target);
  /// Returns whether there are as many ranks, and the same ones on every host.
  [[nodiscard]] bool are_same_ranks(const optim::State& target) const;
  /// Collective: throws on all ranks what has failed on one.
  void finish();

 private:
  // Reads values [range.offset, range.end()) of an array.
  using Read = std::function<void(Range range, View to)>;

  [[nodiscard]] int saved_world() const noexcept { return manifest_.world; }
  [[nodiscard]] std::int64_t saved(const char* integer) const;
  // Returns the ranks whose own arrays are read: all, or those of this rank's
  // host.
  [[nodiscard]] std::vector<int> ranks_to_read(bool of_host) const;
  [[nodiscard]] const SavedArray* saved_masters() const noexcept;
  [[nodiscard]] Read masters(std::vector<Range> ranges, DType dtype);
  [[nodiscard]] Read weights(std::vector<Range> ranges);
  [[nodiscard]] Read elements(const SavedArray& array,
                              std::vector<Range> ranges);
  // With `stays_own` a rank, which saved the array, reads its own values. What
  // it does not have of them is the mean over its host.
  [[nodiscard]] Read mean_of_ranks(const SavedArray& array,
                                   std::vector<Range> ranges, bool stays_own);
  [[nodiscard]] bool has_all(const SavedArray& array, int rank,
                             const Row& row) const;
  void read_mean(const SavedArray& array, std::span<const int> ranks,
                 const Row& row, View to);
  // Calls body(row of the checkpoint, its values) for what a range of values
  // speaks of; new parameters are left out.
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
  // Elements that pieces of the checkpoint hold, where they lie now.
  [[nodiscard]] std::vector<Range> placed(
      std::span<const SavedPiece> pieces) const;
  // Runs it, unless something has failed already.
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
