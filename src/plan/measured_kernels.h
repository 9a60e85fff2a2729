// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/kernels/adam.h"
#include "thinwire/kernels/sign_compress.h"

namespace thinwire::plan {

/// Runs the kernels of a step as the optimizers do, each once over `elements`
/// elements.
class MeasuredKernels {
 public:
  /// `ranks`: as many records are averaged. `num_threads` as ThreadPool.
  MeasuredKernels(std::size_t elements, int ranks, int num_threads);

  void norm();    ///< Sums of squares, of gradients.
  void encode();  ///< Momentum from signs and gradients, residual, records.
  void serve();   ///< This rank's share, 1/ranks of the elements.
  void update();  ///< Parameters, from records and denominators.
  void adam();    ///< An exact step.
  void sum();     ///< This rank's share of an average of fp32; one thread.

  // ---- 0/1 Adam
  void local_step();
  void sync_encode();  ///< Includes the work of a local step.
  void sync_update();
  void fresh();  ///< Allocates memory, as a first local step does.

  // ---- ZeRO, over 4 bits
  void store();  ///< Gradients, copied; one thread.
  void quantize();
  void quantized_mean();  ///< This rank's share.
  void difference();      ///< Subtracts copies from masters.
  void dequantize();

 private:
  [[nodiscard]] std::size_t share() const;
  [[nodiscard]] std::uint32_t* words(Buffer& of, std::size_t block) const;
  [[nodiscard]] kernels::SignBlock residual(std::size_t block, std::size_t at,
                                            std::size_t size);
  [[nodiscard]] std::uint32_t* codes(std::size_t block);
  template <class Body>
  void for_blocks(std::size_t elements, Body&& body);

  std::size_t elements_;
  std::size_t ranks_;
  ThreadPool pool_;
  Buffer params_, grads_, first_, second_;  // fp32
  Buffer third_, fourth_;                   // more operands
  Buffer residuals_;                        // bf16
  Buffer codes_;                            // of one rank, or a share
  Buffer words_;                            // of one rank's signs
  Buffer received_;                         // of all ranks', of a share
  kernels::AdamCoefficients coefficients_{};
  std::vector<double> sums_;
};

}  // namespace thinwire::plan
