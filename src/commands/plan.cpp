// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "commands/device_path.h"
#include "commands/host_path.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/comm/local.h"
#include "thinwire/config/config.h"
#include "thinwire/core/error.h"
#include "thinwire/plan/measure.h"
#include "thinwire/plan/plan_table.h"
#include "thinwire/plan/workload.h"

namespace thinwire::commands {

namespace {

struct PlanFlags {
  double params = 0;
  double forward_ms = 0;
  double backward_ms = 0;
  double compute_ms = 0;
  std::string config;
  std::optional<config::Config> file;  // contents of `config`
  std::string dtype;
  bool json = false;
  std::optional<int> threads;
  double steps_per_variance_step = 0;
  std::optional<double> steps_per_outer_sync;
  std::optional<double> matrices;
  std::optional<std::int64_t> steps;
  std::optional<std::int64_t> freeze_step;
  std::optional<int> warmup_bits;
  // Flags that describe a network other than the measured one.
  std::optional<double> link_gbps;
  std::optional<double> latency_us;
  std::optional<int> ranks;
  std::optional<int> ranks_per_host;
  DeviceRates devices;  // 0: not given
};

DType dtype_of(const std::string& name) {
  return name == "fp16"   ? DType::kFloat16
         : name == "bf16" ? DType::kBFloat16
                          : DType::kFloat32;
}

constexpr double kMostRanks = 1e6;
constexpr double kMostTime = 1e9;  // in a flag's unit
constexpr double kCopies = 25;     // GB/s of PCIe 4 with 16 lanes

// Backward takes two thirds of the time of forward and backward.
constexpr double kBackwardPart = 2.0 / 3;

[[noreturn]] void refuse_usage(const std::string& what) {
  throw CLI::ParseError(what, CLI::ExitCodes::ValidationError);
}

// Names --config in errors about the file.
template <class Body>
auto reading_config(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    refuse_usage(fmt::format("--config: {}", error.what()));
  }
}

plan::Workload workload_of(const PlanFlags& flags, int ranks) {
  plan::Workload work{.parameters = flags.params,
                      .forward_seconds = flags.forward_ms * 1e-3,
                      .backward_seconds = flags.backward_ms * 1e-3};
  if (flags.compute_ms > 0) {
    work.backward_seconds = flags.compute_ms * kBackwardPart * 1e-3;
    work.forward_seconds = flags.compute_ms * 1e-3 - work.backward_seconds;
  }
  if (flags.file)
    work = reading_config(
        [&] { return plan::workload_of(*flags.file, ranks, work); });
  if (flags.steps)
    work = plan::workload_of_run(work, *flags.steps, flags.freeze_step,
                                 flags.warmup_bits,
                                 flags.file ? &*flags.file : nullptr);
  if (flags.steps_per_outer_sync)
    work.steps_per_outer_sync = *flags.steps_per_outer_sync;
  if (flags.matrices) work.matrices = flags.matrices;
  work.steps_per_variance_step = flags.steps_per_variance_step;
  if (!flags.dtype.empty()) work.dtype = dtype_of(flags.dtype);
  return work;
}

void print(const Front& front, const PlanFlags& flags,
           const plan::Workload& work, const plan::Network& network,
           const plan::Compute& compute) {
  const auto all = plan::plan(work, network, compute);
  front.out << (flags.json ? plan::plan_json(all) : plan::plan_table(all));
}

plan::Network network_of(const PlanFlags& flags) {
  if (!flags.ranks || !flags.link_gbps)
    refuse_usage(
        "plan: a single rank cannot measure a network: start it with a "
        "launcher (mpirun, torchrun), or describe the network by --ranks, "
        "--link-gbps and --latency-us");
  const int on_host = flags.ranks_per_host.value_or(1);
  if (*flags.ranks % on_host != 0)
    refuse_usage(
        fmt::format("--ranks-per-host must be a divisor of --ranks {}, got {}",
                    *flags.ranks, on_host));
  plan::Network network{.ranks = *flags.ranks,
                        .ranks_per_host = on_host,
                        .gbps = *flags.link_gbps};
  if (flags.latency_us) network.latency_seconds = *flags.latency_us * 1e-6;
  return network;
}

void say_what_is_not_given(const Front& front, const PlanFlags& flags) {
  if (flags.forward_ms == 0 && flags.backward_ms == 0 &&
      flags.compute_ms == 0 && !flags.json)
    front.out << "without --forward-ms and --backward-ms (or --compute-ms) a "
                 "step counts only its exchange and update\n";
}

// Prints a line only for models on an accelerator, because other models already
// have their parameters in host memory.
void say_host_path(const Front& front, const PlanFlags& flags,
                   const plan::Workload& work) {
  if (flags.threads != 0 || flags.json) return;
  const double copies = front.copies_gbps ? front.copies_gbps() : 0;
  front.out << host_path(work, copies);
}

// Missing rates are measured if possible.
void say_device_path(const Front& front, const PlanFlags& flags,
                     const plan::Workload& work, const plan::Network& network) {
  DeviceRates rates = flags.devices;
  if (rates.memory == 0 || flags.json) return;
  if (rates.copies == 0 && front.copies_gbps)
    rates.copies = front.copies_gbps();
  if (rates.copies == 0) rates.copies = kCopies;
  if (rates.host_memory == 0) rates.host_memory = memory_bandwidth(num_cores());
  front.out << device_path(work, network, rates);
}

void require_devices(const PlanFlags& flags) {
  const DeviceRates& given = flags.devices;
  if (given.memory == 0 &&
      (given.between > 0 || given.copies > 0 || given.host_memory > 0))
    refuse_usage(
        "--device-link, --device-copies and --host-memory: they need "
        "--device-memory");
  if (given.memory > 0 && given.between == 0 &&
      flags.ranks_per_host.value_or(1) > 1)
    refuse_usage(
        "--device-memory: with --ranks-per-host it needs --device-link, the "
        "rate between devices of a host");
  if (given.memory > 0 && !flags.ranks)
    refuse_usage(
        "--device-memory: it needs --ranks and --link-gbps, which describe the "
        "network");
}

void require_matrices(const PlanFlags& flags) {
  if (flags.matrices && *flags.matrices > flags.params)
    refuse_usage(fmt::format("--matrices: must be at most --params {}, got {}",
                             flags.params, *flags.matrices));
}

void require_run(const PlanFlags& flags) {
  if (flags.warmup_bits && !flags.steps)
    refuse_usage("--warmup-bits: it needs --steps, the length of the run");
  if (!flags.freeze_step) return;
  if (!flags.steps)
    refuse_usage("--freeze-step: it needs --steps, the length of the run");
  if (*flags.freeze_step > *flags.steps)
    refuse_usage(fmt::format(
        "--freeze-step: must be at most --steps {}, or no step is compressed, "
        "got {}",
        *flags.steps, *flags.freeze_step));
}

void run_alone(const Front& front, const PlanFlags& flags) {
  const plan::Network network = network_of(flags);
  const plan::Processors processors =
      plan::processors_for(network.ranks_per_host, flags.threads.value_or(-1));
  plan::Workload work = workload_of(flags, network.ranks);
  work.has_spare_core = processors.has_spare_core();
  say_what_is_not_given(front, flags);
  plan::MeasuredCompute compute;
  comm::run_local_ranks(1, [&](comm::Communicator& alone) {
    compute = plan::measure_compute(alone);
  });
  // One rank neither serves nor sums, so the sum takes the time of the norm,
  // which has similar memory traffic.
  compute.sum = compute.norm;
  compute.spread.sum = compute.spread.norm;
  if (flags.json) {
    front.err << plan::unstable(compute);
  } else {
    front.out << "as described: " << plan::describe(network)
              << plan::describe(compute)
              << "on machines like this one: " << plan::describe(processors);
    front.out << "a single rank cannot measure the cost of a message, the "
                 "processor time of communication, the exchange inside a host, "
                 "and how far ranks on one machine slow each other down\n";
  }
  say_host_path(front, flags, work);
  say_device_path(front, flags, work, network);
  print(front, flags, work, network, compute);
}

void run_in_job(const Front& front, const PlanFlags& flags) {
  if (flags.ranks || flags.link_gbps || flags.ranks_per_host ||
      flags.latency_us)
    refuse_usage(
        "plan: under a launcher the network is measured: omit --ranks, "
        "--ranks-per-host, --link-gbps and --latency-us, or use no launcher");
  const auto comm = front.join();
  // Throws before any exchange, so that every rank can refuse.
  plan::Workload work = workload_of(flags, comm->size());
  const plan::Processors processors =
      plan::measure_processors(*comm, flags.threads.value_or(-1));
  work.has_spare_core = processors.has_spare_core();
  if (comm->rank() == 0) say_what_is_not_given(front, flags);
  comm::WhyFlat why;
  const comm::Hosts hosts = comm::find_hosts(*comm, {}, &why);
  const plan::MeasuredNetwork network = plan::measure_network(*comm, hosts);
  const plan::MeasuredCompute compute = plan::measure_compute(*comm);
  if (comm->rank() == 0) {
    if (flags.json) {
      front.err << plan::unstable(network) << plan::unstable(compute);
    } else {
      front.out << "measured: " << plan::describe(network)
                << plan::describe(compute) << plan::describe(processors);
      if (!why.text.empty()) front.out << "flat: " << why.text << '\n';
      if (hosts.size == 1)
        front.out << "all ranks share one host, so no link between hosts was "
                     "measured\n";
    }
    say_host_path(front, flags, work);
    print(front, flags, work, network, compute);
  }
  comm->barrier();
}

void run_plan(const Front& front, PlanFlags flags) {
  require_run(flags);
  require_matrices(flags);
  require_devices(flags);
  if (!flags.config.empty())
    flags.file = reading_config([&] {
      // The notes on keys are not printed with a prediction.
      std::vector<config::KeyNote> notes;
      return config::Config::from_file(flags.config, &notes);
    });
  if (front.join)
    run_in_job(front, flags);
  else
    run_alone(front, flags);
}

// Unlike CLI::Range, this validator rejects NaN. With `digits` it accepts only
// whole numbers, even in the form 3e4, which transform() writes out.
CLI::Validator number(double least, double most, bool digits = false) {
  const std::string range = fmt::format("in [{:.16g}, {:.16g}]", least, most);
  return CLI::Validator(
      [=](std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        if (text.empty() || *end != '\0' ||
            !(value >= least && value <= most) ||
            (digits && value != std::floor(value)))
          return fmt::format("must be {}, got {}", range, text);
        if (digits) text = fmt::format("{:.0f}", value);
        return std::string();
      },
      range);
}

void add_run_options(CLI::App& command, PlanFlags& flags) {
  command
      .add_option("--steps", flags.steps,
                  "length of the run; predicts the whole run, exact stages "
                  "included, and sorts by it")
      ->transform(number(1, plan::RunStages::kMostSteps, true));
  command
      .add_option("--freeze-step", flags.freeze_step,
                  "warm-up steps of 1-bit Adam and lean 1-bit Adam (default: "
                  "from --config, otherwise a fifth of --steps, at most 1000)")
      ->transform(number(1, plan::RunStages::kMostSteps, true));
  command
      .add_option("--warmup-bits", flags.warmup_bits,
                  "bits in which 1-bit Adam's warm-up averages gradients: 4, "
                  "8, or 0 for exact averages (default: from --config, "
                  "otherwise 8, or 0 with --freeze-step)")
      ->check(CLI::IsMember({0, 4, 8}));
}

void add_network_options(CLI::App& command, PlanFlags& flags) {
  command
      .add_option("--ranks", flags.ranks,
                  "without a launcher: ranks of the planned job")
      ->transform(number(2, kMostRanks, true));
  command
      .add_option(
          "--ranks-per-host", flags.ranks_per_host,
          "without a launcher: ranks that share a network card (default 1)")
      ->transform(number(1, 1024, true));
  command
      .add_option(
          "--link-gbps", flags.link_gbps,
          "without a launcher: rate of a host's network card, Gbit/s each way")
      ->check(number(1e-3, 1e6));
  command
      .add_option("--latency-us", flags.latency_us,
                  "without a launcher: latency of one collective in "
                  "microseconds (default 50)")
      ->check(number(0, kMostTime));
}

void add_device_options(CLI::App& command, DeviceRates& rates) {
  const auto add = [&](const char* flag, double& rate, const char* what) {
    command.add_option(flag, rate, what)->check(number(1e-3, 1e6));
  };
  add("--device-memory", rates.memory,
      "GB/s of a device's memory; prints what averages with DDP cost there");
  add("--device-link", rates.between,
      "GB/s between the devices of a host, each way");
  add("--device-copies", rates.copies,
      "GB/s of copies between a device and its host (default: measured by the "
      "Python package, otherwise 25)");
  add("--host-memory", rates.host_memory,
      "GB/s of host memory (default: measured)");
}

}  // namespace

void add_plan(CLI::App& app, const Front& front) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = app.add_subcommand(
      "plan",
      "Predict time, traffic and memory of a step for each optimizer and "
      "exchange; under a launcher it measures network and processors");
  command->add_option("--params", flags->params, "parameters of the model")
      ->required()
      ->check(number(1, 1e15));
  auto* forward = command
                      ->add_option("--forward-ms", flags->forward_ms,
                                   "time of one forward without any exchange")
                      ->check(number(0, kMostTime));
  auto* backward = command
                       ->add_option("--backward-ms", flags->backward_ms,
                                    "time of one backward without any exchange")
                       ->check(number(0, kMostTime));
  command
      ->add_option(
          "--compute-ms", flags->compute_ms,
          "instead of the two above: time of forward and backward together")
      ->check(number(0, kMostTime))
      ->excludes(forward)
      ->excludes(backward);
  command->add_option(
      "--config", flags->config,
      "a configuration file that gives dtype, accumulation, buckets, "
      "residuals, low rank and stages");
  command
      ->add_option("--dtype", flags->dtype,
                   "dtype of parameters: fp32, fp16 or bf16 (default: from "
                   "--config, otherwise fp32)")
      ->check(CLI::IsMember({"fp32", "fp16", "bf16"}));
  command
      ->add_option(
          "--threads", flags->threads,
          "threads of a rank that compute backward (default: "
          "THINWIRE_NUM_THREADS, otherwise 1); 0 if an accelerator computes")
      ->transform(number(0, 1024, true));
  command
      ->add_option("--variance-every", flags->steps_per_variance_step,
                   "plan 0/1 Adam before its freeze, with one exact step in N "
                   "(default: after the freeze)")
      ->check(number(1, kMostTime));
  command
      ->add_option("--sync-every", flags->steps_per_outer_sync,
                   "local steps between two syncs of an outer loop (default: "
                   "from --config, otherwise 15)")
      ->transform(number(1, kMostTime, true));
  command
      ->add_option("--matrices", flags->matrices,
                   "matrices of the model, for low rank (default: 32; a "
                   "transformer of L layers has 4 L)")
      ->transform(number(1, kMostTime, true));
  command->add_flag("--json", flags->json, "one JSON object per line");
  add_run_options(*command, *flags);
  add_network_options(*command, *flags);
  add_device_options(*command, flags->devices);
  command->callback([&front, flags] { run_plan(front, *flags); });
}

}  // namespace thinwire::commands
