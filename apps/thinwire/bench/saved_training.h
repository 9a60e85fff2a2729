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

/// A rank whose model Adam trains in fp32, so 12 bytes per element in a
/// checkpoint.
class SavedTraining {
 public:
  struct Settings {
    std::size_t elements = 0;
    std::size_t tensors = 0;  ///< Number of tensors of about equal size, or 0
                              ///< for tensors of up to 2^20.
    std::string folder;  ///< Saves the same step into folder/saved every time.
    int threads = 1;
    checkpoint::SaveOptions options{};
  };
  /// Collective, like all other functions; `comm` must outlive this.
  SavedTraining(comm::Communicator& comm, const Settings& settings);

  void step();
  /// Sets whether the next save() is asynchronous.
  void set_asynchronous(bool on) { options_.asynchronous = on; }
  /// Saves; an asynchronous save is in flight afterwards.
  checkpoint::SaveReport save();
  void wait() { saver_.wait(); }
  checkpoint::LoadReport load();
  /// Waits, then removes all files of a checkpoint.
  void remove();

  /// Return paths and sizes of the tensors' files of the present checkpoint.
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
