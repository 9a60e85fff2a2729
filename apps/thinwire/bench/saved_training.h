// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::apps::bench {

/// A rank with a model that Adam trains in fp32: 12 bytes per element in a
/// checkpoint.
class SavedTraining {
 public:
  struct Settings {
    std::size_t elements = 0;
    std::size_t tensors = 0;  ///< Of about the same size; 0: of up to 2^20.
    std::string folder;       ///< Saves into folder/saved the same step always.
    int threads = 1;
    checkpoint::SaveOptions options{};
  };
  /// Collective, as all that follows; `comm` must outlive it.
  SavedTraining(comm::Communicator& comm, const Settings& settings);

  void step();
  /// Of the next save().
  void set_asynchronous(bool on) { options_.asynchronous = on; }
  /// An asynchronous one is under way afterwards.
  checkpoint::SaveReport save();
  void wait() { saver_.wait(); }
  checkpoint::LoadReport load();
  /// Waits, and leaves no file of a checkpoint.
  void remove();

  /// Of the tensors' files of the checkpoint that is there.
  [[nodiscard]] std::vector<std::string> files() const;
  [[nodiscard]] std::vector<std::uint64_t> file_bytes() const;

 private:
  [[nodiscard]] checkpoint::Training training();
  void remove_folders() const;

  std::string root_;
  checkpoint::SaveOptions options_;
  comm::Communicator& comm_;
  ParameterLayout layout_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  Buffer params_;
  Buffer grads_;
  checkpoint::Saver saver_;
};

}  // namespace thinwire::apps::bench
