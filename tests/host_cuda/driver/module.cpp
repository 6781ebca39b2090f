// Loading of modules: shared objects from memory, and their kernels by name.
#include "module.h"

#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "../compiler/ptx_text.h"

namespace hostcuda {

Registry<Module>& modules() {
    static Registry<Module>& all = *new Registry<Module>(6);
    return all;
}

Registry<Function>& functions() {
    static Registry<Function>& all = *new Registry<Function>(7);
    return all;
}

std::mutex& modules_mutex() {
    static std::mutex& mutex = *new std::mutex;
    return mutex;
}

Module::~Module() { dlclose(library); }

static bool is_elf(const void* image) { return !std::strncmp(static_cast<const char*>(image), ELFMAG, SELFMAG); }

std::vector<char> read_image(const void* image) {
    if (!is_elf(image)) {
        std::string inner = image_of_ptx(static_cast<const char*>(image));
        return is_elf(inner.c_str()) ? std::vector<char>(inner.begin(), inner.end()) : std::vector<char>();
    }
    Elf64_Ehdr header;
    std::memcpy(&header, image, sizeof header);
    if (header.e_type != ET_DYN || header.e_machine != EM_X86_64) return {};
    // No size is given with an image: it ends with the last of its parts.
    const char* begin = static_cast<const char*>(image);
    std::size_t end = header.e_shoff + std::size_t{header.e_shnum} * header.e_shentsize;
    for (int section = 0; section < header.e_shnum; ++section) {
        Elf64_Shdr entry;
        std::memcpy(&entry, begin + header.e_shoff + std::size_t(section) * header.e_shentsize, sizeof entry);
        if (entry.sh_type != SHT_NOBITS) end = std::max<std::size_t>(end, entry.sh_offset + entry.sh_size);
    }
    return std::vector<char>(begin, begin + end);
}

Status load_module(CUmodule& handle, const std::vector<char>& image, Device& device) {
    if (image.empty()) return cudaErrorInvalidKernelImage;
    // A name of its own each time: dlopen gives a loaded object again where it knows the name or the file.
    char path[] = "/tmp/hostcuda-XXXXXX";
    int file = mkstemp(path);
    if (file < 0) return cudaErrorOperatingSystem;
    bool is_written = write(file, image.data(), image.size()) == static_cast<ssize_t>(image.size());
    close(file);
    void* library = is_written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!library) complain("a module cannot be loaded: %s", is_written ? dlerror() : "no room for its file");
    unlink(path);
    if (!library) return cudaErrorInvalidKernelImage;
    handle = reinterpret_cast<CUmodule>(modules().add(std::make_shared<Module>(device, library)));
    return kSuccess;
}

Status unload_module(CUmodule handle) {
    ModulePtr module = modules().remove(handle);
    if (!module) return cudaErrorInvalidResourceHandle;
    std::lock_guard<std::mutex> lock(modules_mutex());
    // Launches under way keep it until they are done.
    for (const auto& [name, function] : module->function_handles) functions().remove(function);
    return kSuccess;
}

Status get_function(CUfunction& handle, CUmodule module_handle, const char* name) {
    ModulePtr module = modules().find(module_handle);
    if (!module) return cudaErrorInvalidResourceHandle;
    if (!name) return cudaErrorInvalidValue;
    std::lock_guard<std::mutex> lock(modules_mutex());
    auto known = module->function_handles.find(name);
    if (known == module->function_handles.end()) {
        auto symbol = [&](const std::string& prefix) { return dlsym(module->library, (prefix + name).c_str()); };
        void* launch = symbol("hostcuda_launch_");
        auto* sizes = static_cast<const unsigned*>(symbol("hostcuda_param_nbytes_"));
        auto* attributes = static_cast<const unsigned*>(symbol("hostcuda_attributes_"));
        if (!launch || !sizes || !attributes) return cudaErrorSymbolNotFound;
        auto function = std::make_shared<Function>();
        function->module = module;
        function->name = name;
        function->launch = reinterpret_cast<LaunchFunction>(launch);
        function->parameter_nbytes.assign(sizes + 1, sizes + 1 + sizes[0]);
        function->static_shared_nbytes = static_cast<int>(attributes[0]);
        function->max_threads = std::min<int>(attributes[1] ? attributes[1] : kMaxThreadsPerBlock, kMaxThreadsPerBlock);
        function->num_registers = static_cast<int>(attributes[2]);
        function->max_dynamic_shared_nbytes = std::max(0, kStaticSharedNbytes - function->static_shared_nbytes);
        known = module->function_handles.emplace(name, functions().add(function)).first;
    }
    handle = reinterpret_cast<CUfunction>(known->second);
    return kSuccess;
}

}  // namespace hostcuda
