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
  std::size_t context = 64;  ///< How many bytes a prediction may look back.
};

/// A small GPT over bytes: pre-norm blocks, learned positions, tanh-GELU, an
/// untied head without bias. Its input is the sum of a position and three byte
/// tables: this byte and the two before, which are 0 before the window.
/// Parameters and gradients lie in flat arrays. They may be 16-bit, but
/// arithmetic is in fp32, because half precision is many times slower on CPUs.
///
/// Each object belongs to one thread, and torch computes only in that thread,
/// so that ranks give the same bits as threads and as processes.
class Model {
 public:
  explicit Model(const ModelShape& shape);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// Draws the parameters, which are the same for the same seed and shape.
  void initialize(std::uint64_t seed);

  [[nodiscard]] std::size_t context() const noexcept;
  [[nodiscard]] const ParameterLayout& layout() const;
  [[nodiscard]] View params();
  [[nodiscard]] View grads();

  /// Makes backward() and step() train with this configuration from now on,
  /// from rank 0's parameters. Collective.
  void train_with(comm::Communicator& comm, const config::Config& config);
  /// Returns the engine that trains; call train_with() first.
  [[nodiscard]] engine::Engine& engine() noexcept;

  /// Returns the mean loss of the batch, in nats per byte. Its gradient is in
  /// grads(). After train_with() it may still be in flight.
  double backward(const Batch& batch);
  /// Call train_with() first. Collective.
  engine::EngineReport step();

  /// Returns the sum of the losses of all positions, in nats, and keeps the
  /// gradient.
  [[nodiscard]] double loss_sum(const Batch& batch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::train_gpt
