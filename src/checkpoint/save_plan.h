// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/commit/root.h"
#include "checkpoint/rows.h"
#include "checkpoint/whole_model.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/core/buffer.h"

namespace thinwire::checkpoint {

/// Plans the files of one rank. Elements that all ranks share are written once,
/// by one rank. A rank writes all of its own elements.
class SavePlan {
 public:
  /// Local. `training`, `whole`, `state` (its optimizer's) and `extra` must
  /// outlive what is read from the files.
  SavePlan(const Training& training, const WholeModel& whole,
           const optim::State& state, const Extra& extra,
           const SaveOptions& options);

  [[nodiscard]] std::vector<PlannedFile>& files() noexcept { return files_; }
  /// Returns rank 0's manifest, still without the other ranks' own scalars.
  [[nodiscard]] Manifest manifest() const;
  /// Returns model.safetensors.index.json, for weights in more than one file.
  [[nodiscard]] std::vector<Attachment> attachments() const;

  /// Most bytes of one file of weights.
  static constexpr std::size_t kWeightFileBytes = std::size_t{256} << 20;

 private:
  struct Tensor {
    TensorEntry entry;
    optim::StateArray::Read read;  // elements of it
  };
  /// One of the files of weights: parameters [first, end).
  struct WeightFile {
    std::string name;
    std::size_t first = 0;
    std::size_t end = 0;
    int rank = 0;
  };

  void plan_weights();
  void plan_dense_weights();
  void plan_expert_weights();
  [[nodiscard]] std::vector<Range> own_shares(
      const optim::StateArray& array) const;
  [[nodiscard]] std::vector<Row> rows_of_values(const optim::StateArray& array,
                                                Range part) const;
  [[nodiscard]] optim::StateArray::Read of_all_parameters(
      const optim::StateArray& array) const;
  void add_weight_file(const WeightFile& file);
  void plan_state();
  void add_array(const optim::StateArray& array);
  void add_extra();
  [[nodiscard]] std::string fragments(std::vector<Row> rows);
  void add_tensor(std::vector<Tensor>& tensors, std::string name,
                  std::vector<std::size_t> shape, TensorType type,
                  optim::StateArray::Read read) const;
  [[nodiscard]] PlannedFile file_of(std::string name,
                                    std::vector<Tensor> tensors,
                                    const std::string& part) const;
  [[nodiscard]] DType dtype_of_whole(const Parameter& parameter) const;
  [[nodiscard]] bool is_written(const optim::StateArray& array) const;
  [[nodiscard]] bool saves_others() const;

  const Training& training_;
  const WholeModel& whole_;
  const optim::State& state_;
  const Extra& extra_;
  const SaveOptions& options_;
  const int rank_;
  const int world_;
  ConstView weights_;  // of the last exchange, perhaps in fp32
  std::vector<PlannedFile> files_;
  std::vector<WeightFile> weight_files_;
  // Tensors of this rank's file of states.
  std::vector<Tensor> tensors_;
  std::vector<std::pair<std::string, std::string>> names_;
  std::vector<std::pair<std::vector<Row>, std::string>> fragments_;
};

/// The name of a rank's file of states.
[[nodiscard]] std::string state_file_name(int rank, int world);
/// "fp32", "fp16", "bf16".
[[nodiscard]] std::string precision_name(DType dtype);

/// The same file, with the contents that it has now: 64-byte aligned in
/// `memory`, which is made anew where it is too small.
[[nodiscard]] PlannedFile snapshot_of(const PlannedFile& file, Buffer& memory);

}  // namespace thinwire::checkpoint
