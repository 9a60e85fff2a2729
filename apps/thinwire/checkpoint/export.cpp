// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/thinwire/checkpoint/commands.h"
#include "apps/thinwire/checkpoint/json_lines.h"
#include "apps/thinwire/checkpoint/opened.h"
#include "apps/thinwire/checkpoint/write_tensors.h"
#include "checkpoint/read/verified_file.h"
#include "thinwire/core/error.h"

namespace thinwire::apps::checkpoint_tool {

namespace {

using checkpoint::SavedArray;

// The shard size of Hugging Face.
constexpr std::uint64_t kShardBytes = 5'000'000'000;
constexpr std::uint64_t kMostAttachmentBytes = std::uint64_t{16} << 20;

std::optional<DType> dtype_from(const std::string& name) {
  if (name == "fp32") return DType::kFloat32;
  if (name == "bf16") return DType::kBFloat16;
  if (name == "fp16") return DType::kFloat16;
  return std::nullopt;
}

// Returns the array that the weights were rounded from, whatever its name:
// masters, or 0/1 Adam's origin. Null if no file has it.
const SavedArray* masters_of(Opened& from, std::size_t number) {
  for (const SavedArray& array : from.manifest().arrays)
    if (array.is_parameters && array.axis == optim::Axis::kElement &&
        !checkpoint::SavedArrays::is_per_rank(array) &&
        from.has_all(array, -1, number))
      return &array;
  return nullptr;
}

Tensor weight_tensor(Opened& from, std::size_t number,
                     std::optional<DType> dtype) {
  const checkpoint::SavedParameter& parameter =
      from.manifest().parameters[number];
  Tensor tensor{parameter.name, parameter.type, parameter.shape};
  if (dtype) tensor.type = {*dtype};
  const SavedArray* const masters =
      tensor.type == parameter.type ? nullptr : masters_of(from, number);
  tensor.values = masters != nullptr ? from.elements(*masters, -1, number)
                                     : from.weight(parameter.name);
  return tensor;
}

std::vector<Tensor> weight_tensors(Opened& from, std::optional<DType> dtype) {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < from.manifest().parameters.size(); ++i)
    tensors.push_back(weight_tensor(from, i, dtype));
  for (const auto& other : from.manifest().others)
    tensors.push_back(
        {other.name, other.type, other.shape, from.weight(other.name)});
  return tensors;
}

// Returns exp_avg/NAME and the like for each array by element, except arrays of
// single ranks.
std::vector<Tensor> state_tensors(Opened& from) {
  std::vector<Tensor> tensors;
  for (const SavedArray& array : from.manifest().arrays) {
    if (array.axis != optim::Axis::kElement ||
        checkpoint::SavedArrays::is_per_rank(array))
      continue;
    for (std::size_t i = 0; i < from.manifest().parameters.size(); ++i) {
      const auto& parameter = from.manifest().parameters[i];
      if (elements_of(parameter) > 0 && from.has_all(array, -1, i))
        tensors.push_back({array.name + "/" + parameter.name,
                           {array.dtype},
                           parameter.shape,
                           from.elements(array, -1, i)});
    }
  }
  const StateDict& scalars = from.manifest().scalars;
  const std::int64_t step = scalars.has_scalar("step") ? scalars.integer("step")
                                                       : from.manifest().step;
  tensors.push_back(
      {"step", {DType::kInt64}, {}, {DType::kInt64, 1, [step](Range, View to) {
                                       to.as<std::int64_t>()[0] = step;
                                     }}});
  return tensors;
}

class Export {
 public:
  explicit Export(std::string out) : out_(std::move(out)) {
    checkpoint::posix_file_system().make_directories(out_);
  }

  void weights(std::vector<Tensor> tensors) {
    std::vector<std::vector<Tensor>> shards(1);
    std::uint64_t bytes = 0;
    std::uint64_t total = 0;
    for (Tensor& tensor : tensors) {
      if (!shards.back().empty() && bytes + tensor.bytes() > kShardBytes) {
        shards.emplace_back();
        bytes = 0;
      }
      bytes += tensor.bytes();
      total += tensor.bytes();
      shards.back().push_back(std::move(tensor));
    }
    if (shards.size() == 1) return file("model.safetensors", shards[0]);
    OrderedJson map = OrderedJson::object();
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::string name =
          fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
      file(name, shards[i]);
      for (const Tensor& tensor : shards[i]) map[tensor.name] = name;
    }
    text("model.safetensors.index.json",
         OrderedJson{{"metadata", {{"total_size", total}}}, {"weight_map", map}}
                 .dump(2) +
             "\n");
  }

  void file(const std::string& name, const std::vector<Tensor>& tensors) {
    begin(name);
    note(name, write_tensors(out_ + "/" + name, tensors));
  }
  void text(const std::string& name, const std::string& content) {
    begin(name);
    write_text(out_ + "/" + name, content);
    note(name, content.size());
  }

  // Copies config.json and the other files that other readers need.
  void attachments(const Opened& from) {
    for (const auto& saved : from.manifest().files)
      if (!saved.name.ends_with(".safetensors") &&
          !saved.name.ends_with(".safetensors.index.json"))
        text(saved.name,
             checkpoint::read_text(checkpoint::posix_file_system(),
                                   from.directory() + "/" + saved.name, false,
                                   kMostAttachmentBytes));
  }

  // Removes all files after a failure, so that none looks whole.
  void remove_all() const noexcept {
    std::error_code ignored;
    for (const std::string& name : begun_)
      std::filesystem::remove(out_ + "/" + name, ignored);
  }

  void conclude(bool json) const {
    for (const auto& [name, bytes] : written_)
      if (json)
        print_line({{"file", out_ + "/" + name}, {"bytes", bytes}});
      else
        fmt::print("{}/{}: {}\n", out_, name, size_text(bytes));
  }

 private:
  // A file that existed before is not removed; writing it fails.
  void begin(const std::string& name) {
    if (!std::filesystem::exists(out_ + "/" + name)) begun_.push_back(name);
  }
  void note(const std::string& name, std::uint64_t bytes) {
    written_.emplace_back(name, bytes);
  }

  std::string out_;
  std::vector<std::string> begun_;
  std::vector<std::pair<std::string, std::uint64_t>> written_;
};

}  // namespace

void export_to(const std::string& path, const ExportFlags& flags, bool json) {
  Opened from(path);
  Export to(flags.out);
  try {
    to.weights(weight_tensors(from, dtype_from(flags.dtype)));
    to.attachments(from);
    if (flags.states) to.file("optimizer.safetensors", state_tensors(from));
  } catch (...) {
    to.remove_all();
    throw;
  }
  to.conclude(json);
}

}  // namespace thinwire::apps::checkpoint_tool
