// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "examples/train_gpt/text_data.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"
#include "thinwire/engine/engine.h"

namespace thinwire::train_gpt {

/// Sizes of the model.
struct ModelShape {
  std::size_t layers = 4;
  std::size_t width = 128;  ///< A multiple of `heads`.
  std::size_t heads = 4;
  std::size_t context = 64;  ///< Bytes that a prediction may look back.
};

/// A small GPT over bytes: pre-norm blocks, learned positions, tanh-GELU, an
/// untied head without bias. Its input is the sum of three byte tables (this
/// byte, the one before, the one before that; 0 before the window) and a
/// position. Parameters and gradients lie in flat arrays. They may be kept in
/// 16 bits: arithmetic is in fp32 all the same, because half precision is many
/// times slower than that on CPUs.
///
/// Each object belongs to one thread, and torch computes in that thread alone,
/// so that ranks give the same bits as threads and as processes.
class Model {
 public:
  explicit Model(const ModelShape& shape);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// Draws the parameters: the same for the same seed and shape.
  void initialize(std::uint64_t seed);

  [[nodiscard]] std::size_t context() const noexcept;
  [[nodiscard]] const ParameterLayout& layout() const;
  [[nodiscard]] View params();
  [[nodiscard]] View grads();

  /// Collective: from now on backward() and step() train with this
  /// configuration. Rank 0's parameters go to all ranks.
  void train_with(comm::Communicator& comm, const config::Config& config);
  /// What trains; after train_with().
  [[nodiscard]] engine::Engine& engine() noexcept;

  /// Mean loss of the batch, in nats per byte. Its gradient is in grads(), or,
  /// after train_with(), on its way.
  double backward(const Batch& batch);
  /// Collective, after train_with().
  engine::EngineReport step();

  /// Sum of the losses of all positions, in nats; leaves the gradient alone.
  [[nodiscard]] double loss_sum(const Batch& batch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::train_gpt
