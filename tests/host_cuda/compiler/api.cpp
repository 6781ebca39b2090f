// libnvrtc.so.13 that compiles for the host: NVRTC's functions over build.h.
//
// The image ("cubin") of a program is a shared object with three symbols for each kernel NAME:
//   int hostcuda_launch_NAME(void** parameters, const unsigned grid[3], const unsigned block[3],
//                            unsigned dynamic_shared_nbytes): runs all of it; returns a cudaError_t;
//   const unsigned hostcuda_param_nbytes_NAME[]: how many parameters there are, and the size of each;
//   const unsigned hostcuda_attributes_NAME[4]: bytes of static shared memory, most threads of a block, registers, 0.

#include "nvrtc_api.h"

#include <cstring>
#include <stdexcept>

#include "build.h"
#include "ptx_text.h"

struct _nvrtcProgram {
    Program program;
    bool is_compiled = false;
    bool has_cubin = false;
    Build build;
    std::string ptx;
};

namespace {

nvrtcResult give_size(const std::string& text, size_t* size) {
    if (size == nullptr) return NVRTC_ERROR_INVALID_INPUT;
    *size = text.size();
    return NVRTC_SUCCESS;
}

nvrtcResult give(const std::string& text, char* memory) {
    if (memory == nullptr) return NVRTC_ERROR_INVALID_INPUT;
    std::memcpy(memory, text.data(), text.size());
    return NVRTC_SUCCESS;
}

std::string terminated(const std::string& text) { return text + '\0'; }

}  // namespace

extern "C" {

const char* nvrtcGetErrorString(nvrtcResult result) {
    switch (result) {
#define CASE(name) \
    case name:     \
        return #name;
        CASE(NVRTC_SUCCESS)
        CASE(NVRTC_ERROR_INVALID_INPUT)
        CASE(NVRTC_ERROR_INVALID_PROGRAM)
        CASE(NVRTC_ERROR_INVALID_OPTION)
        CASE(NVRTC_ERROR_COMPILATION)
        CASE(NVRTC_ERROR_INTERNAL_ERROR)
#undef CASE
        default:
            return "NVRTC_ERROR unknown";
    }
}

nvrtcResult nvrtcVersion(int* major, int* minor) {
    if (major == nullptr || minor == nullptr) return NVRTC_ERROR_INVALID_INPUT;
    *major = VERSION_MAJOR;
    *minor = VERSION_MINOR;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
    if (count == nullptr) return NVRTC_ERROR_INVALID_INPUT;
    *count = static_cast<int>(SUPPORTED_ARCHS.size());
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetSupportedArchs(int* archs) {
    if (archs == nullptr) return NVRTC_ERROR_INVALID_INPUT;
    std::memcpy(archs, SUPPORTED_ARCHS.data(), SUPPORTED_ARCHS.size() * sizeof(int));
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* created, const char* source, const char* name, int num_headers,
                               const char* const* headers, const char* const* include_names) {
    if (created == nullptr || source == nullptr || num_headers < 0) return NVRTC_ERROR_INVALID_INPUT;
    if (num_headers > 0 && (headers == nullptr || include_names == nullptr)) return NVRTC_ERROR_INVALID_INPUT;
    auto* program = new _nvrtcProgram;
    program->program.source = source;
    program->program.name = name != nullptr ? name : "default_program";
    for (int i = 0; i < num_headers; ++i) program->program.headers.emplace_back(include_names[i], headers[i]);
    *created = program;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
    if (program == nullptr || *program == nullptr) return NVRTC_ERROR_INVALID_PROGRAM;
    delete *program;
    *program = nullptr;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int num_options, const char* const* options) {
    if (program == nullptr) return NVRTC_ERROR_INVALID_PROGRAM;
    if (num_options < 0 || (num_options > 0 && options == nullptr)) return NVRTC_ERROR_INVALID_INPUT;
    program->is_compiled = false;
    program->build = Build();
    try {
        const Options parsed = parse_options(std::vector<std::string>(options, options + num_options));
        program->build = build(program->program, parsed);
        if (!program->build.is_done) return NVRTC_ERROR_COMPILATION;
        program->has_cubin = !parsed.is_virtual_arch;
        program->ptx = ptx_of_image(program->build.image, parsed.arch, build_version());
    } catch (const std::invalid_argument& error) {
        program->build.log = error.what();
        return NVRTC_ERROR_INVALID_OPTION;
    } catch (const std::exception& error) {
        program->build.log = error.what();
        return NVRTC_ERROR_INTERNAL_ERROR;
    }
    program->is_compiled = true;
    return NVRTC_SUCCESS;
}

#define REQUIRE_COMPILED                                            \
    if (program == nullptr) return NVRTC_ERROR_INVALID_PROGRAM;     \
    if (!program->is_compiled) return NVRTC_ERROR_INVALID_PROGRAM;

nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t* size) {
    REQUIRE_COMPILED
    return give_size(terminated(program->ptx), size);
}

nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* ptx) {
    REQUIRE_COMPILED
    return give(terminated(program->ptx), ptx);
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
    REQUIRE_COMPILED
    return give_size(program->has_cubin ? program->build.image : "", size);
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) {
    REQUIRE_COMPILED
    return program->has_cubin ? give(program->build.image, cubin) : NVRTC_ERROR_INVALID_PROGRAM;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
    if (program == nullptr) return NVRTC_ERROR_INVALID_PROGRAM;
    return give_size(terminated(program->build.log), size);
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
    if (program == nullptr) return NVRTC_ERROR_INVALID_PROGRAM;
    return give(terminated(program->build.log), log);
}
}
