import java.nio.file.Path;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.apache.hadoop.yarn.server.nodemanager.LocalDirsHandlerService;
import org.apache.hadoop.yarn.server.nodemanager.NodeManager;
import org.apache.hadoop.yarn.server.nodemanager.ResourceView;
import org.apache.hadoop.yarn.server.nodemanager.webapp.WebServer;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.security.ApplicationACLsManager;

/**
 * YARN's ResourceManager and its NodeManagers in one process, without their web pages, which take most of their start.
 *
 * <p>{@code YarnDaemons FOLDER NODES} takes its settings from the class path (core-site.xml). It prints
 * {@code READY CLIENTS SCHEDULER}, the addresses of the ResourceManager, once all nodes have registered.
 */
public class YarnDaemons {
    static class Resources extends ResourceManager {
        @Override
        protected void startWepApp() {}
    }

    static class Node extends NodeManager {
        @Override
        protected WebServer createWebServer(
                Context context, ResourceView view, ApplicationACLsManager acls, LocalDirsHandlerService dirs) {
            return new WebServer(context, view, acls, dirs) {
                @Override
                protected void serviceStart() {}
            };
        }
    }

    public static void main(String[] arguments) {
        try {
            serve(Path.of(arguments[0]), Integer.parseInt(arguments[1]));
        } catch (Throwable problem) {
            problem.printStackTrace();
            // Services that did start have threads.
            Runtime.getRuntime().halt(1);
        }
    }

    private static void serve(Path folder, int nodes) throws Exception {
        // Else the second node's metrics have the names of the first one's.
        DefaultMetricsSystem.setMiniClusterMode(true);
        ResourceManager resources = new Resources();
        resources.init(new YarnConfiguration());
        resources.start();
        for (int i = 0; i < nodes; i++) {
            YarnConfiguration conf = new YarnConfiguration(resources.getConfig());
            conf.set(YarnConfiguration.NM_LOCAL_DIRS, folder.resolve("local-" + i).toString());
            conf.set(YarnConfiguration.NM_LOG_DIRS, folder.resolve("logs-" + i).toString());
            NodeManager node = new Node();
            node.init(conf);
            node.start();
        }
        while (resources.getResourceScheduler().getNumClusterNodes() < nodes) {
            Thread.sleep(50);
        }
        System.out.printf(
                "READY %s %s%n",
                resources.getConfig().get(YarnConfiguration.RM_ADDRESS),
                resources.getConfig().get(YarnConfiguration.RM_SCHEDULER_ADDRESS));
        Thread.currentThread().join();
    }
}
