// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/bench/saved_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "apps/thinwire/bench/rows.h"
#include "thinwire/optim/adam.h"
#include "thinwire/optim/data_parallel.h"

namespace thinwire::apps::bench {

namespace {

ParameterLayout layout_of(std::size_t elements, std::size_t tensors) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  if (tensors == 0) tensors = (elements + kMost - 1) / kMost;
  std::vector<ParameterSpec> specs;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < tensors; ++i) {
    const std::size_t end = elements * (i + 1) / tensors;
    specs.push_back({fmt::format("layer.{}.weight", i), {end - begin}});
    begin = end;
  }
  return ParameterLayout::of(std::move(specs));
}

}  // namespace

SavedTraining::SavedTraining(comm::Communicator& comm, const Settings& settings)
    : root_(settings.folder + "/saved"),
      options_(settings.options),
      comm_(comm),
      layout_(layout_of(settings.elements, settings.tensors)),
      optimizer_(std::make_unique<optim::DataParallel>(
          comm,
          std::make_unique<optim::Adam>(
              layout_, optim::AdamOptions{.learning_rate = 1e-5}),
          optim::ExchangeOptions{.num_threads = settings.threads})),
      params_(random_values(settings.elements, 1)),
      grads_(random_values(settings.elements, 2)),
      saver_(comm) {
  step();
}

checkpoint::Training SavedTraining::training() {
  return {.comm = comm_,
          .layout = layout_,
          .params = params_.view(),
          .optimizer = *optimizer_,
          .step = 1};
}

void SavedTraining::step() { optimizer_->step(params_.view(), grads_.view()); }

checkpoint::SaveReport SavedTraining::save() {
  return saver_.save(training(), root_, {}, options_);
}

checkpoint::LoadReport SavedTraining::load() {
  return checkpoint::load(training(), root_);
}

void SavedTraining::remove() {
  wait();
  comm_.barrier();
  if (comm_.rank() == 0) remove_folders();
  comm_.barrier();
}

void SavedTraining::remove_folders() const {
  for (const auto& entry : std::filesystem::directory_iterator(root_))
    if (entry.is_directory()) std::filesystem::remove_all(entry.path());
}

std::vector<std::string> SavedTraining::files() const {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root_))
    if (entry.path().extension() == ".safetensors")
      paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::uint64_t> SavedTraining::file_bytes() const {
  std::vector<std::uint64_t> sizes;
  for (const std::string& path : files())
    sizes.push_back(std::filesystem::file_size(path));
  return sizes;
}

}  // namespace thinwire::apps::bench
