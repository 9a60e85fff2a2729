// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/thinwire/checkpoint/commands.h"
#include "apps/thinwire/checkpoint/opened.h"
#include "checkpoint/commit/write_file.h"
#include "checkpoint/format/fields.h"
#include "checkpoint/read/verified_file.h"
#include "thinwire/core/buffer.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::apps::checkpoint_tool {

namespace {

using checkpoint::PlannedTensor;
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

// Returns the array from which the weights were rounded, which is masters or
// 0/1 Adam's origin. Null if no file has it.
const SavedArray* masters_of(Opened& from, std::size_t number) {
  for (const SavedArray& array : from.manifest().arrays)
    if (array.is_parameters && array.axis == optim::Axis::kElement &&
        !checkpoint::SavedArrays::is_per_rank(array) &&
        from.has_all(array, number))
      return &array;
  return nullptr;
}

// Converts piece by piece if the values have another dtype.
PlannedTensor tensor_of(std::string name, checkpoint::TensorType type,
                        std::vector<std::size_t> shape, Values values) {
  PlannedTensor tensor{
      {.name = std::move(name), .type = type, .shape = std::move(shape)},
      std::move(values.read)};
  if (values.dtype != type.dtype)
    tensor.read = [read = std::move(tensor.read), dtype = values.dtype](
                      Range range, View to) {
      Buffer piece(range.size, dtype);
      read(range, piece.view());
      kernels::convert(std::as_const(piece).view(), to);
    };
  return tensor;
}

PlannedTensor weight_tensor(Opened& from, std::size_t number,
                            std::optional<DType> dtype) {
  const auto& parameter = from.manifest().parameters[number];
  const checkpoint::TensorType type =
      dtype ? checkpoint::TensorType{*dtype} : parameter.type;
  const SavedArray* const masters =
      type == parameter.type ? nullptr : masters_of(from, number);
  return tensor_of(parameter.name, type, parameter.shape,
                   masters != nullptr ? from.elements(*masters, number)
                                      : from.weight(parameter.name));
}

std::vector<PlannedTensor> weight_tensors(Opened& from,
                                          std::optional<DType> dtype) {
  std::vector<PlannedTensor> tensors;
  for (std::size_t i = 0; i < from.manifest().parameters.size(); ++i)
    tensors.push_back(weight_tensor(from, i, dtype));
  for (const auto& other : from.manifest().others)
    tensors.push_back(tensor_of(other.name, other.type, other.shape,
                                from.weight(other.name)));
  return tensors;
}

// Returns tensors such as exp_avg/NAME for each array by element, except arrays
// of single ranks.
std::vector<PlannedTensor> state_tensors(Opened& from) {
  std::vector<PlannedTensor> tensors;
  for (const SavedArray& array : from.manifest().arrays) {
    if (array.axis != optim::Axis::kElement ||
        checkpoint::SavedArrays::is_per_rank(array))
      continue;
    for (std::size_t i = 0; i < from.manifest().parameters.size(); ++i) {
      const auto& parameter = from.manifest().parameters[i];
      if (checkpoint::elements_of(parameter.shape) != 0u &&
          from.has_all(array, i))
        tensors.push_back(tensor_of(array.name + "/" + parameter.name,
                                    {array.dtype}, parameter.shape,
                                    from.elements(array, i)));
    }
  }
  const StateDict& scalars = from.manifest().scalars;
  const std::int64_t step = scalars.has_scalar("step") ? scalars.integer("step")
                                                       : from.manifest().step;
  tensors.push_back({{.name = "step", .type = {DType::kInt64}, .shape = {}},
                     [step](Range range, View to) {
                       if (range.size > 0) to.as<std::int64_t>()[0] = step;
                     }});
  return tensors;
}

std::uint64_t bytes_of(const PlannedTensor& tensor) {
  return checkpoint::elements_of(tensor.entry.shape).value() *
         size_of(tensor.entry.type.dtype);
}

class Export {
 public:
  explicit Export(std::string out) : out_(std::move(out)) {
    checkpoint::posix_file_system().make_directories(out_);
  }

  void weights(std::vector<PlannedTensor> tensors) {
    std::vector<std::vector<PlannedTensor>> shards(1);
    std::uint64_t bytes = 0;
    std::uint64_t total = 0;
    for (PlannedTensor& tensor : tensors) {
      const std::uint64_t own = bytes_of(tensor);
      if (!shards.back().empty() && bytes + own > kShardBytes) {
        shards.emplace_back();
        bytes = 0;
      }
      bytes += own;
      total += own;
      shards.back().push_back(std::move(tensor));
    }
    if (shards.size() == 1) return tensors_in("model.safetensors", shards[0]);
    OrderedJson map = OrderedJson::object();
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::string name =
          fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
      tensors_in(name, shards[i]);
      for (const PlannedTensor& tensor : shards[i])
        map[tensor.entry.name] = name;
    }
    const OrderedJson index{{"metadata", {{"total_size", total}}},
                            {"weight_map", map}};
    write(checkpoint::Attachment{"model.safetensors.index.json",
                                 index.dump(2) + "\n"});
  }

  void tensors_in(const std::string& name,
                  const std::vector<PlannedTensor>& tensors) {
    write(checkpoint::planned_file(name, tensors, {{"format", "pt"}}));
  }

  // Copies config.json and the other files that other readers need.
  void attachments(const Opened& from) {
    for (const auto& saved : from.manifest().files)
      if (!saved.name.ends_with(".safetensors") &&
          !saved.name.ends_with(".safetensors.index.json"))
        write(checkpoint::Attachment{
            saved.name,
            checkpoint::read_text(checkpoint::posix_file_system(),
                                  from.directory() + "/" + saved.name, false,
                                  kMostAttachmentBytes)});
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
  template <class File>
  void write(const File& file) {
    if (!std::filesystem::exists(out_ + "/" + file.name))
      begun_.push_back(file.name);
    const checkpoint::Destination to{
        checkpoint::posix_file_system(), out_, true, {}};
    written_.emplace_back(file.name, checkpoint::write_file(to, file).bytes);
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
    if (flags.states)
      to.tensors_in("optimizer.safetensors", state_tensors(from));
  } catch (...) {
    to.remove_all();
    throw;
  }
  to.conclude(json);
}

}  // namespace thinwire::apps::checkpoint_tool
