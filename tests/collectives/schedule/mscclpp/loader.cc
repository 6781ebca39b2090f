// Loads a plan with MSCCL++'s own parser and prints what it understood, as JSON; exit code 1 and a line where it refuses.
//
//     loader PLAN.json RANK INPUT_NBYTES OUTPUT_NBYTES WORLD_SIZE
//
// Compiled with g++ -fno-access-control, since what the parser has made is private to the executor.

#include <iostream>

#include "execution_plan.hpp"

using mscclpp::BufferType;
using mscclpp::OperationType;
using nlohmann::json;

namespace mscclpp {

BaseError::BaseError(const std::string& message, int code) : std::runtime_error(message), errorCode_(code) {}
const char* BaseError::what() const noexcept { return std::runtime_error::what(); }
Error::Error(const std::string& message, ErrorCode code) : BaseError(message, static_cast<int>(code)) {}

}  // namespace mscclpp

namespace {

const std::map<OperationType, const char*> kNames = {
    {OperationType::NOP, "nop"},           {OperationType::COPY, "copy"},
    {OperationType::PUT, "put"},           {OperationType::SIGNAL, "signal"},
    {OperationType::WAIT, "wait"},         {OperationType::REDUCE, "re"},
    {OperationType::SEM_ACQUIRE, "sem_acquire"}, {OperationType::SEM_RELEASE, "sem_release"},
};

std::string bufferName(BufferType type) { return std::string(1, "ios"[static_cast<int>(type)]); }

json parts(const mscclpp::BufferRef* refs, const uint32_t* offsets, const uint32_t* nbytes, int count, bool isRemote) {
  json all = json::array();
  for (int i = 0; i < count; i++) {
    json part = {{"offset", offsets[i]}, {"nbytes", nbytes[i]}};
    if (isRemote) {
      part["buffer_id"] = refs[i].id;
    } else {
      part["type"] = bufferName(refs[i].type);
    }
    all.push_back(part);
  }
  return all;
}

json understood(const mscclpp::Operation& op) {
  json said = {{"name", kNames.at(op.type)}};
  if (op.type == OperationType::SEM_ACQUIRE || op.type == OperationType::SEM_RELEASE) {
    for (uint32_t i = 0; i < op.nDeviceSemaphores; i++) said["semaphore_ids"].push_back(op.deviceSemaphoreIds[i]);
    return said;
  }
  for (int i = 0; i < op.nChannels; i++) said["channel_ids"].push_back(op.channelIndexes[i]);
  if (op.nInputs) said["src_buff"] = parts(op.inputBufferRefs, op.inputOffsets, op.inputBufferSizes, op.nInputs, false);
  bool isRemote = op.type == OperationType::PUT;
  if (op.nOutputs) {
    said["dst_buff"] = parts(op.outputBufferRefs, op.outputOffsets, op.outputBufferSizes, op.nOutputs, isRemote);
  }
  return said;
}

}  // namespace

int main(int, char** argv) {
  try {
    mscclpp::ExecutionPlan::Impl plan(argv[1], std::stoi(argv[2]));
    const size_t inputNbytes = std::stoul(argv[3]), outputNbytes = std::stoul(argv[4]);
    plan.loadExecutionPlan(inputNbytes, outputNbytes, 0, 0);
    json said = {{"name", plan.name},
                 {"collective", plan.collective},
                 {"scratch_nbytes", plan.calScratchBufferSize(inputNbytes, outputNbytes)},
                 {"num_semaphores", plan.semaphoreInfos.size()},
                 {"limits",
                  {{"operations", mscclpp::MAX_OPERATION},
                   {"channels", mscclpp::MAX_CHANNEL},
                   {"channels_per_operation", mscclpp::MAX_CHANNEL_PER_OPERATION},
                   {"semaphores", mscclpp::MAX_DEVICE_SEMAPHORES}}}};
    said["peers"] = json::array();
    for (const auto& info : plan.getChannelInfos(mscclpp::ChannelType::MEMORY)) {
      for (int peer : info.connectedPeers) said["peers"].push_back(peer);
    }
    // A channel that one side has and the other lacks would be waited on for ever.
    said["num_unpaired"] = plan.getUnpairedChannelInfos(std::stoi(argv[5]), mscclpp::ChannelType::MEMORY).size();
    said["remote_buffers"] = json::array();
    for (const auto& info : plan.getRemoteBufferInfos()) {
      said["remote_buffers"].push_back({{"rank", info.rank}, {"type", bufferName(info.bufferType)}});
    }
    said["blocks"] = json::array();
    for (int block = 0; block < plan.getThreadblockCount(); block++) {
      json ops = json::array();
      for (const auto& op : plan.getOperations(block)) ops.push_back(understood(op));
      json buffers = json::array();
      for (const auto& [id, type] : plan.threadblockMemoryChannelBuffers[block]) buffers.push_back(id);
      said["blocks"].push_back(
          {{"ops", ops}, {"channel_ids", plan.threadblockMemoryChannels[block]}, {"remote_buffer_ids", buffers}});
    }
    std::cout << said << std::endl;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return 0;
}
