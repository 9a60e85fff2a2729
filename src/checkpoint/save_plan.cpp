// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "checkpoint/matching.h"
#include "checkpoint/read/saved_arrays.h"
#include "checkpoint/rows.h"
#include "core/json_text.h"
#include "core/ranges.h"
#include "core/require.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::checkpoint {

using optim::Axis;
using optim::Sharing;
using optim::StateArray;

namespace {

// Reads the values of several parts, one after the other.
StateArray::Read read_parts(StateArray::Read read, std::vector<Range> parts) {
  return
      [read = std::move(read), parts = std::move(parts)](Range range, View to) {
        std::size_t done = 0;
        for (const Range& part : part_of_ranges(parts, range)) {
          read(part, to.subview(done, part.size));
          done += part.size;
        }
      };
}

StateArray::Read read_rows(const std::vector<Row>& rows) {
  auto values = std::make_shared<std::vector<std::int64_t>>();
  for (const Row& row : rows)
    for (const std::size_t value :
         {row.parameter, row.range.offset, row.range.size})
      values->push_back(static_cast<std::int64_t>(value));
  return [values](Range range, View to) {
    std::copy_n(values->begin() + static_cast<std::ptrdiff_t>(range.offset),
                range.size, to.as<std::int64_t>().begin());
  };
}

// Converts values to the dtype of the file. The dtype differs only for weights
// of an earlier exchange, which are kept in fp32.
StateArray::Read converted(ConstView values) {
  return [values](Range range, View to) {
    kernels::convert(values.subview(range.offset, range.size), to);
  };
}

std::vector<std::string> files_of_weights(std::size_t count) {
  if (count == 1) return {"model.safetensors"};
  std::vector<std::string> names;
  for (std::size_t k = 1; k <= count; ++k)
    names.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", k, count));
  return names;
}

// Bytes of one file of weights, at most.
constexpr std::size_t kWeightFileBytes = std::size_t{256} << 20;

PlannedFile planned(std::string name, const std::vector<PlannedTensor>& tensors,
                    const std::string& part) {
  return planned_file(std::move(name), tensors,
                      {{"format", "pt"}, {"thinwire", "1.0"}, {"part", part}});
}

void add_tensor(std::vector<PlannedTensor>& tensors, std::string name,
                std::vector<std::size_t> shape, TensorType type,
                StateArray::Read read) {
  tensors.push_back(
      {{.name = std::move(name), .type = type, .shape = std::move(shape)},
       std::move(read)});
}

class SavePlan {
 public:
  SavePlan(const Training& training, const WholeModel& whole,
           const optim::State& state, const Extra& extra,
           const SaveOptions& options)
      : training_(training),
        whole_(whole),
        state_(state),
        extra_(extra),
        options_(options),
        rank_(training.comm.rank()),
        world_(training.comm.size()),
        weights_(optim::exchanged_params(training.optimizer, training.params)) {
    plan_weights();
    plan_state();
  }

  [[nodiscard]] std::vector<PlannedFile>& files() noexcept { return files_; }

  Manifest manifest() const {
    Manifest manifest;
    manifest.step = training_.step;
    manifest.world = world_;
    manifest.optimizer = state_.common.text("optimizer");
    manifest.semantics = training_.semantics;
    manifest.phase =
        std::string(to_string(training_.optimizer.progress().phase));
    manifest.precision = precision_name(training_.params.dtype());
    manifest.zero_stage = training_.zero_stage;
    for (const Parameter& p : whole_.layout.parameters())
      manifest.parameters.push_back(
          {p.name, p.shape, p.group, {dtype_of_whole(p)}});
    for (const OtherTensor& other : others())
      manifest.others.push_back({other.name, other.shape, 0, type_of(other)});
    manifest.aliases = training_.aliases;
    for (const StateArray& array : state_.arrays)
      manifest.arrays.push_back({array.name, array.axis, array.sharing,
                                 array.dtype, array.is_parameters});
    manifest.scalars.put_all("", state_.common);
    manifest.caller.put_all("", training_.scalars);
    for (const auto& [name, value] : extra_.common.scalars())
      manifest.extra.put_scalar(name, value);
    manifest.config = training_.config;
    for (const WeightFile& file : weight_files_)
      manifest.weight_files.push_back(file.name);
    manifest.steps_behind = optim::steps_behind(training_.optimizer);
    return manifest;
  }

  std::vector<Attachment> attachments() const {
    std::vector<Attachment> all = options_.attachments;
    if (weight_files_.size() == 1) return all;
    std::size_t bytes = 0;
    for (const Parameter& p : whole_.layout.parameters())
      bytes += p.size * size_of(dtype_of_whole(p));
    JsonValue map = JsonValue::object();
    auto& members = map.get_ref<JsonValue::object_t&>();
    for (const WeightFile& file : weight_files_)
      for (std::size_t i = file.first; i < file.end; ++i)
        members.emplace_back(whole_.layout.parameters()[i].name, file.name);
    for (const OtherTensor& other : others())
      members.emplace_back(other.name, weight_files_.front().name);
    all.push_back({"model.safetensors.index.json",
                   write_json({{"metadata", {{"total_size", bytes}}},
                               {"weight_map", std::move(map)}})});
    return all;
  }

 private:
  // A file with the weights of parameters [first, end).
  struct WeightFile {
    std::string name;
    std::size_t first = 0;
    std::size_t end = 0;
    int rank = 0;
  };

  // Returns the saved tensors that are not parameters.
  std::span<const OtherTensor> others() const {
    if (!options_.frozen) return {};
    return training_.others;
  }

  void plan_weights() {
    plan_dense_weights();
    plan_expert_weights();
    const std::vector<std::string> names =
        files_of_weights(weight_files_.size());
    for (std::size_t k = 0; k < names.size(); ++k)
      weight_files_[k].name = names[k];
    for (const WeightFile& file : weight_files_)
      if (file.rank == rank_) add_weight_file(file);
  }

  void plan_dense_weights() {
    const auto parameters =
        whole_.layout.parameters().subspan(0, whole_.num_dense);
    const std::size_t elements =
        parameters.empty() ? 0
                           : parameters.back().offset + parameters.back().size;
    const std::size_t bytes = training_.params.subview(0, elements).bytes();
    // If ranks have their own parameters, rank 0 writes all weights, because
    // parts of several ranks would not fit together.
    const int most = state_.find(kOwnParameters) == nullptr ? world_ : 1;
    const std::size_t count =
        std::clamp((bytes + kWeightFileBytes - 1) / kWeightFileBytes,
                   std::size_t{1}, static_cast<std::size_t>(most));
    std::size_t first = 0;
    for (std::size_t k = 0; k < count; ++k) {
      // The file ends with the parameter that completes its share of all
      // elements.
      std::size_t end = first;
      const std::size_t goal =
          share_of(elements, static_cast<int>(k), static_cast<int>(count))
              .end();
      while (end < parameters.size() &&
             (k + 1 == count ||
              parameters[end].offset + parameters[end].size / 2 < goal))
        ++end;
      weight_files_.push_back(
          {{},
           first,
           end,
           static_cast<int>(k * static_cast<std::size_t>(world_) / count)});
      first = end;
    }
  }

  // Puts neighbouring experts of one rank into one file.
  void plan_expert_weights() {
    std::size_t first = whole_.num_dense;
    const std::size_t count = whole_.layout.parameters().size();
    while (first < count) {
      std::size_t end = first;
      while (end < count && whole_.writers[end] == whole_.writers[first]) ++end;
      weight_files_.push_back({{}, first, end, whole_.writers[first]});
      first = end;
    }
  }

  void add_weight_file(const WeightFile& file) {
    std::vector<PlannedTensor> tensors;
    for (std::size_t i = file.first; i < file.end; ++i) {
      const Parameter& p = training_.layout.parameters()[*whole_.own[i]];
      add_tensor(tensors, p.name, p.shape,
                 {training_.params.dtype_at(p.offset)},
                 converted(weights_.subview(p.offset, p.size)));
    }
    if (file.first == 0 && rank_ == 0 &&
        file.name == weight_files_.front().name)
      for (const OtherTensor& other : others())
        add_tensor(tensors, other.name, other.shape, type_of(other),
                   StateArray::from(other.values));
    files_.push_back(planned(file.name, tensors, "weights"));
  }

  void plan_state() {
    for (const StateArray& array : state_.arrays)
      if (is_written(array)) add_array(array);
    add_extra();
    PlannedFile file = planned(state_file_name(rank_, world_), tensors_,
                               fmt::format("{}/{}", rank_ + 1, world_));
    file.tensors = std::move(names_);
    files_.push_back(std::move(file));
  }

  // Masters are not written if the weights have the same bits, or if other
  // masters are equal to them.
  bool is_written(const StateArray& array) const {
    if (!array.is_parameters) return true;
    if (training_.params.dtype() == array.dtype) return false;
    for (const StateArray& other : state_.arrays)
      if (other.is_parameters) return other.name == array.name;
    return true;
  }

  void add_array(const StateArray& array) {
    const bool has_rows =
        array.axis == Axis::kElement || array.axis == Axis::kRange;
    std::vector<Range> parts{{0, array.size}};
    StateArray::Read read = array.read;
    if (array.sharing == Sharing::kSame) {
      if (has_rows)
        parts = own_shares(array);
      else if (rank_ != 0)
        return;
    }
    if (array.axis == Axis::kParameter && !training_.experts.empty()) {
      parts = {{0, whole_.layout.parameters().size()}};
      read = of_all_parameters(array);
    }
    std::string index;
    if (has_rows) {
      std::vector<Row> rows;
      for (const Range& part : parts)
        for (const Row& row : rows_of_values(array, part)) rows.push_back(row);
      index = fragments(std::move(rows));
    }
    const std::size_t size = total_size(parts);
    add_tensor(tensors_, array.name, {size}, {array.dtype},
               read_parts(std::move(read), std::move(parts)));
    names_.emplace_back(array.name, std::move(index));
  }

  // Returns this rank's share of an array, which ranks with the same parameters
  // divide among them.
  std::vector<Range> own_shares(const StateArray& array) const {
    if (whole_.held.size() == 1) return {share_of(array.size, rank_, world_)};
    std::vector<std::size_t> holder(training_.layout.parameters().size());
    for (std::size_t h = 0; h < whole_.held.size(); ++h)
      for (const std::size_t p : whole_.held[h].parameters) holder[p] = h;
    std::vector<std::vector<Range>> values(whole_.held.size());
    std::size_t at = 0;
    for (const Range& range : array.ranges)
      for (const Row& row : rows_of(training_.layout, {&range, 1})) {
        const bool is_whole = array.axis == Axis::kRange;
        const std::size_t size = is_whole ? 1 : row.range.size;
        values[holder[row.parameter]].push_back({at, size});
        at += size;
        if (is_whole) break;
      }
    std::vector<Range> parts;
    for (std::size_t h = 0; h < values.size(); ++h) {
      const comm::Communicator& comm = *whole_.held[h].comm;
      for (const Range& part : part_of_ranges(
               values[h],
               share_of(total_size(values[h]), comm.rank(), comm.size())))
        parts.push_back(part);
    }
    return parts;
  }

  // Returns the rows of values. An array with the axis kRange has one value per
  // row, and its rows are not cut.
  std::vector<Row> rows_of_values(const StateArray& array, Range part) const {
    std::vector<Row> rows;
    if (array.axis == Axis::kElement) {
      rows = rows_of(training_.layout, part_of_ranges(array.ranges, part));
    } else {
      for (std::size_t i = part.offset; i < part.end(); ++i) {
        const auto row = rows_of(training_.layout, {&array.ranges[i], 1});
        rows.insert(rows.end(), row.begin(), row.end());
      }
    }
    for (Row& row : rows) row.parameter = whole_.places[row.parameter];
    return rows;
  }

  // Reads the values of all parameters, with zeros for experts of other ranks.
  StateArray::Read of_all_parameters(const StateArray& array) const {
    return [read = array.read, own = whole_.own](Range range, View to) {
      if (to.bytes() != 0) std::memset(to.data(), 0, to.bytes());
      for (std::size_t i = 0; i < range.size; ++i)
        if (const auto& p = own[range.offset + i])
          read({*p, 1}, to.subview(i, 1));
    };
  }

  std::string fragments(std::vector<Row> rows) {
    for (const auto& [known, name] : fragments_)
      if (known == rows) return name;
    std::string name = fmt::format("fragments/{}", fragments_.size());
    add_tensor(tensors_, name, {rows.size(), 3}, {DType::kInt64},
               read_rows(rows));
    fragments_.emplace_back(std::move(rows), name);
    return name;
  }

  void add_extra() {
    if (rank_ == 0)
      for (const auto& [name, values] : extra_.common.arrays())
        add_tensor(tensors_, kExtra + name, {values.size()}, {values.dtype()},
                   StateArray::from(values.view()));
    for (const auto& [name, values] : extra_.own.arrays())
      add_tensor(tensors_, kExtraOfRank + name, {values.size()},
                 {values.dtype()}, StateArray::from(values.view()));
  }

  // Returns the dtype of a parameter of the whole model. Experts, which other
  // ranks may hold, have the same dtype as all other parameters.
  DType dtype_of_whole(const Parameter& parameter) const {
    return training_.experts.empty()
               ? training_.params.dtype_at(parameter.offset)
               : training_.params.dtype();
  }

  const Training& training_;
  const WholeModel& whole_;
  const optim::State& state_;
  const Extra& extra_;
  const SaveOptions& options_;
  const int rank_;
  const int world_;
  ConstView weights_;  // of the last exchange, possibly in fp32
  std::vector<PlannedFile> files_;
  std::vector<WeightFile> weight_files_;
  // Tensors in this rank's file of states
  std::vector<PlannedTensor> tensors_;
  std::vector<std::pair<std::string, std::string>> names_;
  std::vector<std::pair<std::vector<Row>, std::string>> fragments_;
};

}  // namespace

std::string precision_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return "fp16";
    case DType::kBFloat16:
      return "bf16";
    default:
      return "fp32";
  }
}

Root::Contents plan_save(const Training& training, const WholeModel& whole,
                         const optim::State& state, const Extra& extra,
                         const SaveOptions& options) {
  SavePlan plan(training, whole, state, extra, options);
  return {std::move(plan.files()), plan.manifest(), plan.attachments(),
          options.progress};
}

PlannedFile snapshot_of(const PlannedFile& file, Buffer& memory) {
  const std::size_t bytes =
      static_cast<std::size_t>(file.header.file_bytes - file.header.data_begin);
  if (memory.size() < bytes) memory = Buffer(bytes, DType::kUInt8, Fill::kNone);
  auto* const data = static_cast<std::byte*>(memory.data());
  const std::uint64_t begin = file.header.data_begin;
  for (std::size_t t = 0; t < file.header.tensors.size(); ++t) {
    const TensorEntry& entry = file.header.tensors[t];
    file.read(
        t, 0,
        {data + (entry.begin - begin), static_cast<std::size_t>(entry.bytes)});
  }
  PlannedFile copy = file;
  copy.read = [data, begin, header = file.header](std::size_t tensor,
                                                  std::uint64_t offset,
                                                  std::span<std::byte> to) {
    if (!to.empty())
      std::memcpy(to.data(),
                  data + (header.tensors[tensor].begin - begin) + offset,
                  to.size());
  };
  return copy;
}

}  // namespace thinwire::checkpoint
